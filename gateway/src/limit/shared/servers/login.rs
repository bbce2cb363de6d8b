//! Connects and logs in to a server: of the store, or a Sentinel.
//!
//! [`Dial`] is the only way to a server, so that a simulation can be the network.
//!
//! Not here: what is checked afterwards (`servers::connection`, `servers::sentinel`).

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, Value};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use weir_common::config::{certificates, files};

use super::address::{ServerAddress, StoreLogin};
use super::errors::{CONNECT_TIMEOUT, ConnectError, unreachable_for};

/// How long any call may take: after this the connection is lost.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How many addresses of a server are tried at once.
const ADDRESSES_MAX: usize = 8;

/// A connection under way.
pub type Dialled<'d> = Pin<Box<dyn Future<Output = Result<Session, ConnectError>> + Send + 'd>>;

/// How servers are reached.
pub trait Dial: Send + Sync {
    /// Connects and logs in to a server.
    fn dial<'d>(&'d self, login: &'d StoreLogin, server: &'d ServerAddress) -> Dialled<'d>;
}

/// A connection to a server that has accepted the login. It ends with the last of its clones.
#[derive(Clone)]
pub struct Session {
    connection: MultiplexedConnection,
    _driver: Arc<JoinSet<()>>,
}

/// TCP, with or without TLS.
#[derive(Default)]
pub struct Tcp {
    /// Kept while its roots do not change.
    tls: Mutex<Option<Tls>>,
}

/// Settings of TLS.
struct Tls {
    /// The text of the file that the roots come from; none: the system's.
    roots: Option<String>,
    config: Arc<ClientConfig>,
}

impl Session {
    /// Logs in over a stream. The caller bounds how long that may take.
    ///
    /// # Errors
    ///
    /// If the password cannot be read, or the server refuses the login.
    pub async fn over<S>(stream: S, login: &StoreLogin) -> Result<Self, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut own = RedisConnectionInfo::default().set_db(login.database).set_skip_set_lib_name();
        if let Some(user) = &login.user {
            own = own.set_username(user);
        }
        if let Some(path) = &login.password_file {
            let password = files::first_line(Path::new(path));
            let password = password.map_err(|why| unreadable(path, &why))?;
            own = own.set_password(password.expose());
        }
        // Requests and heartbeats wait for less. Nothing else may wait for ever either.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
        let opened = MultiplexedConnection::new_with_config(&own, stream, config).await;
        let (connection, reader) = opened.map_err(|error| unreachable_for(&error))?;
        let mut driver = JoinSet::new();
        driver.spawn(reader);
        Ok(Self { connection, _driver: Arc::new(driver) })
    }

    /// Waits for any reply. Without a password a login asks nothing; no rights are needed for this.
    async fn greet(&self) -> Result<(), ConnectError> {
        let greeted =
            self.send(&redis::cmd("HELLO")).await.map_err(|error| unreachable_for(&error));
        greeted.map(drop).or_else(|why| if why.is_silence() { Err(why) } else { Ok(()) })
    }

    /// Sends one command.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.connection.clone().send_packed_command(command).await.and_then(Value::extract_error)
    }

    /// Sends so many commands. Each reply may be an error.
    pub(super) async fn send_all(
        &self,
        commands: &Pipeline,
        count: usize,
    ) -> Result<Vec<Value>, RedisError> {
        self.connection.clone().send_packed_commands(commands, 0, count).await
    }
}

impl Dial for Tcp {
    fn dial<'d>(&'d self, login: &'d StoreLogin, server: &'d ServerAddress) -> Dialled<'d> {
        Box::pin(async {
            let mut question = "";
            let connected = self.connect((login, server), &mut question);
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected).await;
            let late = |_| Err(unreachable(&format!("no answer in {CONNECT_TIMEOUT:?}")));
            connected.unwrap_or_else(late).map_err(|why| why.with_question(question))
        })
    }
}

impl Tcp {
    /// Keeps `question` at what to ask of a server that does not answer now.
    async fn connect(
        &self,
        (login, server): (&StoreLogin, &ServerAddress),
        question: &mut &str,
    ) -> Result<Session, ConnectError> {
        // What is wrong with a file matters more than whether the server runs.
        let tls = login.tls.then(|| self.tls(login.ca.as_deref())).transpose()?;
        let stream = connect_any(server).await.map_err(|why| unreachable(&why))?;
        // Calls are small, and each request waits for its own.
        stream.set_nodelay(true).map_err(|why| unreachable(&why))?;
        let Some(tls) = tls else {
            *question = ": does that port want TLS, by rediss://?";
            let session = Session::over(stream, login).await?;
            return session.greet().await.map(|()| session);
        };
        let name = ServerName::try_from(server.host.clone()).map_err(|why| unreachable(&why))?;
        *question = ": does that port speak TLS?";
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        *question = "";
        Session::over(stream.map_err(|why| no_tls(&why))?, login).await
    }

    /// The settings of TLS that trust the roots in a file, which is read each time, or else the
    /// system's, which are read once.
    fn tls(&self, ca: Option<&str>) -> Result<Arc<ClientConfig>, ConnectError> {
        let read = |path: &str| files::read(Path::new(path)).map_err(|why| unreadable(path, &why));
        let roots = ca.map(read).transpose()?;
        let mut known = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tls) = known.as_ref().filter(|tls| tls.roots == roots) {
            return Ok(tls.config.clone());
        }
        let config = match (&roots, ca) {
            (Some(text), Some(path)) => {
                trusting(text).map_err(|why| ConnectError::Unfit(format!("`{path}` {why}")))?
            }
            _ => ClientConfig::with_platform_verifier()
                .map_err(|why| ConnectError::Rejected(why.to_string()))?,
        };
        let config = Arc::new(config);
        *known = Some(Tls { roots, config: config.clone() });
        Ok(config)
    }
}

/// Connects to the address of a server that answers first.
async fn connect_any(server: &ServerAddress) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    let found = lookup_host((server.host.as_str(), server.port)).await?;
    for address in found.take(ADDRESSES_MAX) {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut failure = io::Error::other("its name has no address");
    while let Some(ended) = attempts.join_next().await {
        match ended.unwrap_or_else(|panic| Err(panic.into())) {
            Ok(stream) => return Ok(stream),
            Err(why) => failure = why,
        }
    }
    Err(failure)
}

/// Why a file cannot be used as `ca`.
#[must_use]
pub fn fault_in_ca(path: &str) -> Option<String> {
    files::read_as(path, trusting).err()
}

/// The settings of TLS that trust the roots in the text of a file.
fn trusting(text: &str) -> Result<ClientConfig, String> {
    let roots = certificates::roots(text)?;
    Ok(ClientConfig::builder().with_root_certificates(roots.store).with_no_client_auth())
}

/// Why a handshake failed: what does not depend on the time of day, so that it is logged once.
fn no_tls(why: &io::Error) -> ConnectError {
    let text = why.to_string();
    match why.kind() {
        io::ErrorKind::InvalidData => {
            let lasting = text.split(": verification time").next().unwrap_or_default();
            ConnectError::Rejected(lasting.to_owned())
        }
        _ => ConnectError::Unreachable(text),
    }
}

fn unreadable(path: &str, why: &io::Error) -> ConnectError {
    ConnectError::Rejected(format!("cannot read `{path}`: {why}"))
}

fn unreachable(why: &impl Display) -> ConnectError {
    ConnectError::Unreachable(why.to_string())
}
