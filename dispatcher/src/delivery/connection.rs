//! One connection to a receiver: opened to an allowed address, used for one request at a time.
//!
//! # Invariants
//!
//! 1. At most [`ANSWER_BYTES_MAX`] bytes of one response are read, in total; a connection that
//!    exceeds this is closed.
//! 2. Dropping a [`Connection`] closes it. One whose response announces its end is closed by the
//!    receiver, or [`RECEIVER_CLOSES`] later.
//!
//! Not here: which addresses may be called (`egress`), how errors are classified (`classify`).

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use url::{Host, Position, Url};
use weir_common::time::{Clock, Tick};

use crate::config::settings::AttemptSettings;
use crate::delivery::client_certificate;
use crate::delivery::egress::dns::is_shortage;
use crate::delivery::egress::{self, AddressError, Rules};
use crate::delivery::http_client::AGENT;
use crate::delivery::proxy::{Proxy, ProxyError};
use crate::delivery::read_limit::{Meter, Metered};
use crate::delivery::source_address::{source_for, without_source};
use crate::domain::trace::Trace;
use crate::domain::webhook::client_certificate::{CertificateId, ClientCertificate};

/// The limit of one response: interim responses, headers, framing, body and trailers. Real headers
/// are a few hundred bytes; proxies accept 8 to 32 KiB.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The limit of the bytes below TLS: certificates, tickets and record framing count as well.
const TLS_BYTES_MAX: usize = 4 * ANSWER_BYTES_MAX;

/// The head start of the preferred address family (RFC 8305).
const HEAD_START: Duration = Duration::from_millis(300);

/// For how long a receiver that announced the end of a connection may close it first: then this
/// machine's port is free at once, and not after a minute in TIME_WAIT. Most close as soon as they
/// have answered.
const RECEIVER_CLOSES: Duration = Duration::from_millis(50);

/// Scheme, host and port of a connection, and the client that it shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    tls: bool,
    host: Host<String>,
    port: u16,
    /// The certificate of one webhook: connections with another are not used for it.
    client: Option<CertificateId>,
}

impl Origin {
    /// The origin of a URL.
    pub(crate) fn of(url: &Url, certificate: Option<&ClientCertificate>) -> Option<Self> {
        let (host, tls) = (url.host()?.to_owned(), url.scheme() == "https");
        let client = certificate.filter(|_| tls).map(ClientCertificate::identity);
        Some(Self { tls, host, port: url.port_or_known_default()?, client })
    }

    fn server_name(&self) -> io::Result<ServerName<'static>> {
        match &self.host {
            Host::Domain(name) => ServerName::try_from(name.clone()).map_err(io::Error::other),
            Host::Ipv4(ip) => Ok(IpAddr::from(*ip).into()),
            Host::Ipv6(ip) => Ok(IpAddr::from(*ip).into()),
        }
    }

    async fn addresses(&self, rules: &Rules) -> Result<Vec<IpAddr>, AddressError> {
        match &self.host {
            Host::Domain(name) => rules.addresses_for_attempt(name).await,
            Host::Ipv4(ip) => Ok(vec![(*ip).into()]),
            Host::Ipv6(ip) => Ok(vec![(*ip).into()]),
        }
    }
}

/// Why no response arrived.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The host has no allowed address.
    #[error("the host has no address to connect to")]
    Address(#[from] AddressError),
    /// The proxy opens no tunnel.
    #[error("no tunnel through the proxy")]
    Proxy(#[source] ProxyError),
    /// Connecting failed.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The TLS handshake failed.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    /// The HTTP exchange failed.
    #[error("the exchange failed")]
    Http(#[source] hyper::Error),
}

/// An open connection.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Bytes of the response.
    meter: Arc<Meter>,
    /// Bytes below TLS.
    below: Arc<Meter>,
    pub(crate) opened: Tick,
    /// The workspace of its latest request.
    pub(crate) user: Option<Arc<str>>,
    /// The address at its other end.
    pub(crate) address: Option<IpAddr>,
    /// The task that drives the connection; dropping it aborts the task.
    driver: JoinSet<()>,
}

/// A connection, and the address that was called.
type Dialed = (TcpStream, IpAddr);

/// Opens connections.
pub(crate) struct Dialer {
    pub(crate) rules: Arc<Rules>,
    pub(crate) tls: TlsConnector,
    /// The time for all addresses of a name.
    pub(crate) within: Duration,
    pub(crate) clock: Clock,
    /// The addresses to call from; empty lets the system choose.
    pub(crate) sources: Vec<IpAddr>,
    pub(crate) proxy: Option<Proxy>,
}

impl Dialer {
    /// Opens a connection, and notes its phases.
    pub(crate) async fn open(
        &self,
        origin: &Origin,
        certificate: Option<&ClientCertificate>,
        trace: &mut Trace,
    ) -> Result<Connection, ConnectError> {
        let mut since = self.clock.now().tick;
        let mut took = || {
            let now = self.clock.now().tick;
            Some(now.since(std::mem::replace(&mut since, now)))
        };
        let addresses = origin.addresses(&self.rules).await?;
        (trace.dns, trace.address) = (took(), addresses.first().copied());
        let (stream, address) = self.dial(&addresses, origin.port).await?;
        trace.connect = took();
        trace.address = Some(address.to_canonical());
        // If this fails, the connection is slower, but works.
        let _ = stream.set_nodelay(true);
        let (below, address) = (Arc::new(Meter::default()), trace.address);
        let opened = self.clock.now().tick;
        if !origin.tls {
            return Connection::over(stream, below, opened, address).await;
        }
        let stream = Metered::new(stream, below.clone(), TLS_BYTES_MAX);
        let name = origin.server_name().map_err(ConnectError::Handshake)?;
        let connector = self.connector(certificate).map_err(ConnectError::Handshake)?;
        let stream = connector.connect(name, stream).await.map_err(ConnectError::Handshake)?;
        trace.tls = took();
        Connection::over(stream, below, opened, address).await
    }

    fn connector(&self, certificate: Option<&ClientCertificate>) -> io::Result<TlsConnector> {
        let Some(certificate) = certificate else { return Ok(self.tls.clone()) };
        let tls = client_certificate::tls_with(self.tls.config(), certificate);
        Ok(TlsConnector::from(Arc::new(tls.map_err(io::Error::other)?)))
    }

    /// Connects to the first address that accepts, in order; the other address family starts
    /// [`HEAD_START`] later, in parallel.
    async fn dial(&self, addresses: &[IpAddr], port: u16) -> Result<Dialed, ConnectError> {
        let preferred = addresses.first().map(IpAddr::is_ipv4);
        let sockets = addresses.iter().map(|ip| SocketAddr::new(*ip, port));
        let (first, second): (Vec<_>, Vec<_>) =
            sockets.partition(|socket| Some(socket.is_ipv4()) == preferred);
        let mut one = std::pin::pin!(self.one_by_one(&first));
        if second.is_empty() {
            return one.await;
        }
        tokio::select! {
            connected = &mut one => match connected {
                Ok(dialed) => return Ok(dialed),
                Err(error) => {
                    let other = self.one_by_one(&second).await;
                    return other.map_err(|second| more_telling(error, second));
                }
            },
            () = sleep(HEAD_START) => {}
        }
        let mut other = std::pin::pin!(self.one_by_one(&second));
        tokio::select! {
            connected = &mut one => match connected {
                Ok(dialed) => Ok(dialed),
                Err(error) => other.await.map_err(|second| more_telling(error, second)),
            },
            connected = &mut other => match connected {
                Ok(dialed) => Ok(dialed),
                Err(error) => one.await.map_err(|first| more_telling(first, error)),
            },
        }
    }

    /// Tries addresses one after another, each for its share of the time.
    async fn one_by_one(&self, sockets: &[SocketAddr]) -> Result<Dialed, ConnectError> {
        let each = self.within / u32::try_from(sockets.len().max(1)).unwrap_or(u32::MAX);
        let mut last = ConnectError::Connect(io::ErrorKind::NotFound.into());
        for socket in sockets {
            match timeout(each, self.reach(*socket, each)).await {
                Ok(Ok(stream)) => return Ok((stream, socket.ip())),
                Ok(Err(error)) => last = error,
                Err(_) => last = ConnectError::Connect(io::ErrorKind::TimedOut.into()),
            }
        }
        Err(last)
    }

    /// Connects to an address, through the proxy if there is one.
    async fn reach(&self, target: SocketAddr, within: Duration) -> Result<TcpStream, ConnectError> {
        let Some(proxy) = &self.proxy else {
            return self.connect(target).await.map_err(ConnectError::Connect);
        };
        let unusable = |error| ConnectError::Proxy(ProxyError::Unusable(error));
        let found = self.rules.addresses_of_proxy(&proxy.at.host).await;
        let mut last = io::ErrorKind::NotFound.into();
        for address in found.map_err(|error| unusable(io::Error::other(error)))? {
            // A proxy that is silent from the start is not the receiver's silence.
            let at = SocketAddr::new(address, proxy.at.port);
            match timeout(within / 2, self.connect(at)).await {
                Ok(Ok(mut stream)) => {
                    proxy.open(&mut stream, target).await.map_err(ConnectError::Proxy)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(unusable(last))
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let Some(source) = source_for(&self.sources, to.ip())? else {
            let connected = TcpStream::connect(to).await;
            return connected.map_err(|error| without_source(error, to));
        };
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(source, 0))?;
        socket.connect(to).await
    }
}

/// Of the errors of both address families, the one to report: a shortage of this machine, then what
/// the receiver did, then that nothing leads to it.
fn more_telling(first: ConnectError, second: ConnectError) -> ConnectError {
    use io::ErrorKind as Kind;
    let weight = |error: &ConnectError| match error {
        ConnectError::Connect(error) if is_shortage(error) => 2,
        ConnectError::Connect(error)
            if matches!(error.kind(), Kind::NetworkUnreachable | Kind::HostUnreachable) =>
        {
            0
        }
        _ => 1,
    };
    if weight(&first) > weight(&second) { first } else { second }
}

impl Connection {
    async fn over<S>(
        stream: S,
        below: Arc<Meter>,
        opened: Tick,
        address: Option<IpAddr>,
    ) -> Result<Self, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let meter = Arc::new(Meter::default());
        let stream = Metered::new(stream, meter.clone(), ANSWER_BYTES_MAX);
        let mut builder = Builder::new();
        builder.max_buf_size(ANSWER_BYTES_MAX);
        // RFC 9112, 5.2: a user agent reads a folded line as one.
        builder.allow_obsolete_multiline_headers_in_responses(true);
        let (sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(ConnectError::Http)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The waiting request receives the error.
            let Ok(ended) = connection.without_shutdown().await else { return };
            let mut stream = ended.io.into_inner();
            // All that still comes is the receiver's end; if it does not come, it is ours.
            let _ = timeout(RECEIVER_CLOSES, stream.read(&mut [0])).await;
            let _ = timeout(RECEIVER_CLOSES, stream.shutdown()).await;
        });
        Ok(Self { sender, meter, below, opened, user: None, address, driver })
    }

    /// Sends a request, and waits for the response headers.
    pub(crate) async fn post(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        self.user = egress::workspace();
        self.meter.begin();
        self.below.begin();
        self.sender.try_send_request(request).await
    }

    /// The count of the response's bytes, which outlives the connection.
    pub(crate) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Whether no byte of a response has arrived.
    pub(crate) fn is_silent(&self) -> bool {
        self.meter.count() == 0
    }

    /// Waits until the connection can send another request; false if it closed.
    pub(crate) async fn is_ready(&mut self) -> bool {
        poll_fn(|cx| self.sender.poll_ready(cx)).await.is_ok()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits for the end of a connection that one side ends: at most twice [`RECEIVER_CLOSES`].
    pub(crate) async fn ended(mut self) {
        self.driver.join_next().await;
    }
}

/// An attempt to make.
#[derive(Clone, Debug)]
pub struct AttemptRequest {
    /// The canonical URL.
    pub url: Url,
    /// Signatures and content type.
    pub headers: HeaderMap,
    /// The envelope.
    pub body: Bytes,
    /// Whether it needs a new connection, because a reused one closed.
    pub fresh_connection: bool,
    /// What receivers that verify their clients are shown, instead of the platform's certificate.
    pub client_certificate: Option<ClientCertificate>,
    /// What is kept of it.
    pub keep: AttemptSettings,
}

/// Builds the HTTP request of an attempt.
pub(crate) fn request(attempt: AttemptRequest) -> Result<Request<Full<Bytes>>, http::Error> {
    let url = &attempt.url;
    let mut request = Request::post(&url[Position::BeforePath..Position::AfterQuery])
        .body(Full::new(attempt.body))?;
    let headers = request.headers_mut();
    *headers = attempt.headers;
    add_usual(headers, url)?;
    Ok(request)
}

/// Adds the headers of every request.
pub(crate) fn add_usual(headers: &mut HeaderMap, url: &Url) -> Result<(), http::Error> {
    let host = HeaderValue::from_str(&url[Position::BeforeHost..Position::AfterPort])?;
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(HOST, host);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_of_the_receiver_is_reported_before_that_nothing_leads_to_it() {
        use io::ErrorKind as Kind;
        let reported = |first: Kind, second: Kind| {
            let [first, second] = [first, second].map(|kind| ConnectError::Connect(kind.into()));
            match more_telling(first, second) {
                ConnectError::Connect(error) => error.kind(),
                other => panic!("{other}"),
            }
        };
        let telling = [Kind::HostUnreachable, Kind::TimedOut, Kind::AddrNotAvailable];
        for pair in telling.windows(2) {
            assert_eq!(reported(pair[0], pair[1]), pair[1]);
            assert_eq!(reported(pair[1], pair[0]), pair[1]);
        }
        assert_eq!(reported(Kind::ConnectionRefused, Kind::TimedOut), Kind::TimedOut, "the last");
    }
}
