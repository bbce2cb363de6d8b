//! Connects and logs in to a server: of the store, or a Sentinel.
//!
//! [`Dial`] is the only way to a server, so that a simulation can be the network.
//!
//! Not here: what is checked afterwards (`shared::connection`, `shared::sentinel`).

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, TlsCertificates, io::tcp::TcpSettings,
};
use weir_common::config::files;

use super::address::{ServerAddress, StoreLogin};
use super::errors::{CONNECT_TIMEOUT, ConnectError, unreachable_for};

/// How long any call may take: after this the connection is lost.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection under way.
pub type Dialled<'d> =
    Pin<Box<dyn Future<Output = Result<MultiplexedConnection, ConnectError>> + Send + 'd>>;

/// How servers are reached.
pub trait Dial: Send + Sync {
    /// Connects and logs in to a server.
    fn dial<'d>(&'d self, login: &'d StoreLogin, server: &'d ServerAddress) -> Dialled<'d>;
}

/// TCP, with or without TLS.
#[derive(Clone, Copy, Debug)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial<'d>(&'d self, login: &'d StoreLogin, server: &'d ServerAddress) -> Dialled<'d> {
        Box::pin(connect(login, server))
    }
}

async fn connect(
    login: &StoreLogin,
    server: &ServerAddress,
) -> Result<MultiplexedConnection, ConnectError> {
    let unreadable = |path: &str, why: io::Error| {
        ConnectError::Unreachable(format!("cannot read `{path}`: {why}"))
    };
    let mut own = RedisConnectionInfo::default().set_db(login.database).set_skip_set_lib_name();
    if let Some(user) = &login.user {
        own = own.set_username(user);
    }
    if let Some(path) = &login.password_file {
        let password = files::first_line(Path::new(path)).map_err(|why| unreadable(path, why))?;
        own = own.set_password(password.expose());
    }
    let (host, port) = (server.host.clone(), server.port);
    let place = match login.tls {
        false => ConnectionAddr::Tcp(host, port),
        true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
    };
    let wrong = |error: RedisError| ConnectError::Unfit(error.to_string());
    let info = place.into_connection_info().map_err(wrong)?.set_redis_settings(own);
    // Calls are small, and each request waits for its own.
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = match login.tls {
        false => Client::open(info).map_err(wrong)?,
        true => {
            let root = login.ca.as_deref();
            let root_cert = root
                .map(|path| files::read(Path::new(path)).map_err(|why| unreadable(path, why)))
                .transpose()?
                .map(String::into_bytes);
            let certificates = TlsCertificates { client_tls: None, root_cert };
            Client::build_with_tls(info, certificates).map_err(wrong)?
        }
    };
    // Requests and heartbeats wait for less. Nothing else may wait for ever either.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    connected.map_err(|error| unreachable_for(&error))
}
