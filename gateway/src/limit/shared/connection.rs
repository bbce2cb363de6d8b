//! A connection to the Redis or Valkey server that gateways share.
//!
//! Calls of all requests travel over it, each at once: none waits for another's reply.
//!
//! # Invariants
//!
//! 1. Nothing is sent twice that the server may have executed.
//! 2. A server that could drop counters, that is a replica, or whose counters have other keys is
//!    never used.
//!
//! # Not here
//!
//! What calls mean (`shared::call`), when a connection is replaced (`limit::shared`).

use std::io;
use std::path::Path;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, ServerErrorKind, TlsCertificates, cmd, io::tcp::TcpSettings,
};
use weir_common::config::files;

use super::address::StoreAddress;

/// How long a connection may take to be made and to be checked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long any call may take: after this the connection is lost.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The key whose value is the fingerprint of the secret that keys are derived from.
const FINGERPRINT_KEY: &str = "weir1:{fingerprint}";

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It may work later.
    #[error("{0}")]
    Unreachable(String),
    /// The server refuses this gateway, as where the password is wrong. It may work later.
    #[error("{0}")]
    Rejected(String),
    /// A call was not answered in time.
    #[error("it does not answer")]
    Silent,
    /// The server is reached, and must not be used.
    #[error("{0}")]
    Unfit(String),
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server does not execute calls now.
    #[error("{0}")]
    Refused(String),
    /// The server cannot execute this call: what it has of a key cannot be read.
    #[error("{0}")]
    Faulty(String),
    /// The connection is lost, or of no use any more. The server may have executed it.
    #[error("{0}")]
    Lost(String),
}

/// A connection, which is checked.
#[derive(Clone)]
pub struct StoreConnection {
    inner: MultiplexedConnection,
    /// Differs from those of earlier connections of this process.
    pub number: u64,
}

/// A script, and the digest that names it in the server.
pub struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    /// A script of this text.
    #[must_use]
    pub fn new(text: &'static str) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
        Self { text, digest: digits.collect() }
    }
}

impl StoreConnection {
    /// Connects, and checks that the server can be used. `fingerprint` is that of the secret.
    pub async fn open(
        address: &StoreAddress,
        fingerprint: &str,
        number: u64,
    ) -> Result<Self, ConnectError> {
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, async {
            let own = Self { inner: connect(address).await?, number };
            own.check_role().await?;
            own.check_eviction().await?;
            own.check_fingerprint(fingerprint).await?;
            Ok(own)
        });
        let late = || ConnectError::Unreachable(format!("no answer in {CONNECT_TIMEOUT:?}"));
        opened.await.unwrap_or_else(|_| Err(late()))
    }

    /// Runs a script, which the server may not know yet.
    pub async fn evaluate(
        &self,
        script: &Script,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> Result<redis::Value, CallError> {
        let mut call = cmd("EVALSHA");
        call.arg(&script.digest).arg(keys.len()).arg(keys).arg(arguments);
        match self.send(&call).await {
            Err(error) if is_unknown_script(&error) => {
                let mut load = cmd("SCRIPT");
                load.arg("LOAD").arg(script.text);
                self.send(&load).await.map_err(|error| failed(&error))?;
                self.send(&call).await.map_err(|error| failed(&error))
            }
            sent => sent.map_err(|error| failed(&error)),
        }
    }

    /// Sends one command.
    pub async fn command<T: redis::FromRedisValue>(&self, words: &[&[u8]]) -> Result<T, CallError> {
        let mut command = Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        let reply = self.send(&command).await.map_err(|error| failed(&error))?;
        redis::from_redis_value(reply).map_err(|why| CallError::Refused(why.to_string()))
    }

    async fn send(&self, command: &Cmd) -> Result<redis::Value, RedisError> {
        self.inner.clone().send_packed_command(command).await.and_then(redis::Value::extract_error)
    }

    async fn check_role(&self) -> Result<(), ConnectError> {
        let info = self.info("replication").await?;
        match info.contains("role:master") {
            true => Ok(()),
            false => Err(ConnectError::Rejected("it is a replica, not a primary".to_owned())),
        }
    }

    /// Counters expire: any policy but `noeviction` may drop them before.
    async fn check_eviction(&self) -> Result<(), ConnectError> {
        let info = self.info("memory").await?;
        let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let (policy, memory) = (of("maxmemory_policy:"), of("maxmemory:"));
        if policy == Some("noeviction") || (policy.is_some() && memory == Some("0")) {
            return Ok(());
        }
        let policy = policy.unwrap_or("unknown");
        Err(ConnectError::Unfit(format!(
            "its maxmemory-policy is {policy}, which drops counters when memory is full: set \
             `maxmemory-policy noeviction`"
        )))
    }

    /// Checks that the keys in the store are derived from the secret of this fingerprint.
    pub async fn check_fingerprint(&self, own: &str) -> Result<(), ConnectError> {
        let mut set = cmd("SET");
        set.arg(FINGERPRINT_KEY).arg(own).arg("NX");
        self.send(&set).await.map_err(|error| unreachable_for(&error))?;
        let mut get = cmd("GET");
        get.arg(FINGERPRINT_KEY);
        let found = self.send(&get).await.map_err(|error| unreachable_for(&error))?;
        let found: Option<String> = redis::from_redis_value(found).unwrap_or_default();
        match found {
            Some(found) if found != own => Err(ConnectError::Unfit(
                "other gateways use it with another secret: give all gateways the same secret_file"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    async fn info(&self, section: &str) -> Result<String, ConnectError> {
        let mut info = cmd("INFO");
        info.arg(section);
        let reply = self.send(&info).await.map_err(|error| unreachable_for(&error))?;
        redis::from_redis_value(reply)
            .map_err(|why| ConnectError::Unreachable(format!("INFO {section}: {why}")))
    }
}

async fn connect(address: &StoreAddress) -> Result<MultiplexedConnection, ConnectError> {
    let unreadable = |path: &str, why: io::Error| {
        ConnectError::Unreachable(format!("cannot read `{path}`: {why}"))
    };
    let mut login = RedisConnectionInfo::default().set_db(address.database).set_skip_set_lib_name();
    if let Some(user) = &address.user {
        login = login.set_username(user);
    }
    if let Some(path) = &address.password_file {
        let password = files::first_line(Path::new(path)).map_err(|why| unreadable(path, why))?;
        login = login.set_password(password.expose());
    }
    let (host, port) = (address.host.clone(), address.port);
    let place = match address.tls {
        false => ConnectionAddr::Tcp(host, port),
        true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
    };
    let wrong = |error: RedisError| ConnectError::Unfit(error.to_string());
    let info = place.into_connection_info().map_err(wrong)?.set_redis_settings(login);
    // Calls are small, and each request waits for its own.
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = match address.tls {
        false => Client::open(info).map_err(wrong)?,
        true => {
            let root = address.ca.as_deref();
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

fn unreachable_for(error: &RedisError) -> ConnectError {
    match error.kind() {
        ErrorKind::Io => ConnectError::Unreachable(error.to_string()),
        _ => ConnectError::Rejected(error.to_string()),
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// What the server says of a call decides what becomes of the connection.
fn failed(error: &RedisError) -> CallError {
    let text = error.to_string();
    match error.kind() {
        // A replica, or one without data: another connection may lead to a primary.
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
            CallError::Lost(text)
        }
        ErrorKind::Server(ServerErrorKind::ResponseError) => CallError::Faulty(text),
        ErrorKind::Extension if error.code() == Some("WRONGTYPE") => CallError::Faulty(text),
        ErrorKind::Server(_) | ErrorKind::Extension => CallError::Refused(text),
        _ => CallError::Lost(text),
    }
}
