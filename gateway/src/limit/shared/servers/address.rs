//! Where the shared store is. (core)
//!
//! Not here: how it is reached (`servers::connection`), which servers of a Cluster have which keys
//! (`servers::cluster`).

use std::fmt;

/// How to reach the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// What the servers are.
    pub topology: Topology,
    /// At least one: the server itself, Sentinels, or nodes of a Cluster from which the others are
    /// found.
    pub servers: Vec<ServerAddress>,
    /// How to log in to servers that have counters.
    pub login: StoreLogin,
    /// A file whose first line is the password of Sentinels.
    pub sentinel_password_file: Option<String>,
    /// How many replicas must have a charge before its request is admitted.
    pub acknowledge: u32,
}

/// What the servers of a store are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One primary.
    Single,
    /// Sentinels, which know the primary of this name.
    Sentinel(String),
    /// Nodes of a Cluster.
    Cluster,
}

/// How to log in to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreLogin {
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

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// Its name or address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl ServerAddress {
    /// Reads `host:port`; brackets around the address of version 6 may be there.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, host, shown) in [
            ("redis.internal:6379", "redis.internal", "redis.internal:6379"),
            ("[::1]:6379", "::1", "[::1]:6379"),
            ("2001:db8::1:6379", "2001:db8::1", "[2001:db8::1]:6379"),
        ] {
            let read = ServerAddress::read(text).unwrap();
            assert_eq!((&*read.host, read.port), (host, 6379));
            assert_eq!(read.to_string(), shown);
        }
        for wrong in ["", "host", "host:", ":6379", "host:0", "host:65536", "host:redis"] {
            assert_eq!(ServerAddress::read(wrong), None, "{wrong}");
        }
    }
}
