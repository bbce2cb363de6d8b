//! Where the shared store is. (core)
//!
//! Not here: how it is reached (`shared::connection`).

/// How to reach the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// The host's name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether connections use TLS.
    pub tls: bool,
    /// The number of the database.
    pub database: i64,
    /// The ACL user; none: the default user.
    pub user: Option<String>,
    /// A file whose first line is the password. It is read at each connection.
    pub password_file: Option<String>,
    /// PEM: the root that signed the server's certificate; none: those of the system.
    pub ca: Option<String>,
}
