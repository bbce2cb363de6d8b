//! Measures what an attempt costs the sender over HTTP/1.1 and over HTTP/2, to a receiver with TLS:
//! one after another on one connection, each on a new connection, and many at a time.
//!
//! HTTP/1.1 is hyper's, as the dispatcher has it; HTTP/2 is the crate `h2`, which hyper's is made
//! of. Many at a time use a connection each over HTTP/1.1, and share one over HTTP/2.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_benches::flags::{Flags, fail};
use weir_benches::lab::{Folder, own_usage};
use weir_benches::post::seconds;
use weir_benches::report::{Series, table};
use weir_benches::secure::{Pair, receiver};
use weir_common::time::Clock;

const USAGE: &str = "usage: streams [--rounds 7] [--attempts 20000]";

const HOST: &str = "api.localhost";

/// A new connection costs as much as so many attempts.
const FEWER: usize = 10;

/// Attempts at a time.
const AT_ONCE: usize = 50;

/// Of each round.
#[derive(Default)]
struct Figures {
    /// Microseconds of CPU for an attempt.
    cpu: Series,
    /// Attempts a second.
    rate: Series,
}

type Failure = Box<dyn Error + Send + Sync>;
type H1 = hyper::client::conn::http1::SendRequest<Full<Bytes>>;
type H2 = h2::client::SendRequest<Bytes>;

#[derive(Clone)]
struct Sender {
    address: SocketAddr,
    tls: [TlsConnector; 2],
}

#[derive(Clone, Copy)]
enum Version {
    Http1,
    Http2,
}

/// How attempts are spread over connections.
#[derive(Clone, Copy)]
enum Spread {
    OneAfterAnother,
    NewConnections,
    AtOnce,
}

const SPREADS: [(Spread, &str); 3] = [
    (Spread::OneAfterAnother, "one after another"),
    (Spread::NewConnections, "each on a new connection"),
    (Spread::AtOnce, "50 at a time"),
];

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let rounds: usize = flags.value("--rounds", 7);
    let attempts: usize = flags.value("--attempts", 20_000);
    let [] = flags.rest();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = Folder::new("streams");
    let pair = Pair::new(&folder);
    let nginx = receiver(&folder, &pair);
    let sender = Sender { address: nginx.aim.address, tls: connectors(&pair) };
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| fail(&format!("no runtime: {error}")));
    let clock = Clock::system();
    let mut rows = Vec::new();
    for (spread, name) in SPREADS {
        let count =
            if matches!(spread, Spread::NewConnections) { attempts / FEWER } else { attempts };
        let measure = |version, into: &mut Figures| {
            let (began, used) = (clock.now().tick, own_usage());
            let sent = runtime.block_on(sender.send(version, spread, count));
            sent.unwrap_or_else(|error| fail(&format!("{name}: {error}")));
            let took = seconds(clock.now().tick.since(began));
            let now = own_usage();
            let busy = now.user + now.system - used.user - used.system;
            into.cpu.0.push(busy / count as f64);
            into.rate.0.push(count as f64 / took);
        };
        let (mut http1, mut http2) = (Figures::default(), Figures::default());
        for _ in 0..rounds {
            measure(Version::Http1, &mut http1);
            measure(Version::Http2, &mut http2);
        }
        rows.push(vec![
            name.to_owned(),
            http1.cpu.range(1),
            http2.cpu.range(1),
            format!("{:.2}", http2.cpu.ratio_to(&http1.cpu)),
            http1.rate.range(0),
            http2.rate.range(0),
            format!("{:.2}", http2.rate.ratio_to(&http1.rate)),
        ]);
    }
    let head =
        ["", "CPU µs, HTTP/1.1", "HTTP/2", "ratio", "attempts/s, HTTP/1.1", "HTTP/2", "ratio"];
    println!("{}", table("An attempt at a receiver with TLS, the sender's side", &head, &rows));
}

/// TLS clients that offer HTTP/1.1, and HTTP/2, alone.
fn connectors(pair: &Pair) -> [TlsConnector; 2] {
    let certificate = CertificateDer::from_pem_file(pair.certificate());
    let certificate = certificate.unwrap_or_else(|error| fail(&error.to_string()));
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap_or_else(|error| fail(&error.to_string()));
    ["http/1.1", "h2"].map(|protocol| {
        let client = ClientConfig::builder().with_root_certificates(roots.clone());
        let mut client = client.with_no_client_auth();
        client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        // Without it, new connections would resume sessions.
        client.resumption = rustls::client::Resumption::disabled();
        TlsConnector::from(Arc::new(client))
    })
}

impl Sender {
    async fn send(&self, version: Version, spread: Spread, count: usize) -> Result<(), Failure> {
        match spread {
            Spread::OneAfterAnother => self.one_after_another(version, count).await,
            Spread::NewConnections => {
                for _ in 0..count {
                    self.one_after_another(version, 1).await?;
                }
                Ok(())
            }
            Spread::AtOnce => self.at_once(version, count).await,
        }
    }

    async fn one_after_another(&self, version: Version, count: usize) -> Result<(), Failure> {
        let mut connections = JoinSet::new();
        match version {
            Version::Http1 => over_http1(self.http1(&mut connections).await?, count).await,
            Version::Http2 => over_http2(self.http2(&mut connections).await?, count).await,
        }
    }

    async fn at_once(&self, version: Version, count: usize) -> Result<(), Failure> {
        let (mut connections, mut running) = (JoinSet::new(), JoinSet::new());
        let each = count / AT_ONCE;
        match version {
            Version::Http1 => {
                for _ in 0..AT_ONCE {
                    running.spawn(over_http1(self.http1(&mut connections).await?, each));
                }
            }
            Version::Http2 => {
                let shared = self.http2(&mut connections).await?;
                for _ in 0..AT_ONCE {
                    running.spawn(over_http2(shared.clone(), each));
                }
            }
        }
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok(())
    }

    async fn tls(&self, version: Version) -> Result<TlsStream<TcpStream>, Failure> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let [http1, http2] = &self.tls;
        let connector = match version {
            Version::Http1 => http1,
            Version::Http2 => http2,
        };
        Ok(connector.connect(ServerName::try_from(HOST)?, stream).await?)
    }

    async fn http1(&self, connections: &mut JoinSet<()>) -> Result<H1, Failure> {
        let stream = TokioIo::new(self.tls(Version::Http1).await?);
        let (sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        // How it ends, its attempts see.
        connections.spawn(async { drop(connection.await) });
        Ok(sender)
    }

    async fn http2(&self, connections: &mut JoinSet<()>) -> Result<H2, Failure> {
        let (sender, connection) = h2::client::handshake(self.tls(Version::Http2).await?).await?;
        // How it ends, its attempts see.
        connections.spawn(async { drop(connection.await) });
        Ok(sender)
    }
}

async fn over_http1(mut sender: H1, count: usize) -> Result<(), Failure> {
    for _ in 0..count {
        sender.ready().await?;
        let answer = sender.send_request(request("/hook", Full::new(body()))?).await?;
        check(answer.status().as_u16())?;
        answer.into_body().collect().await?;
    }
    Ok(())
}

async fn over_http2(mut sender: H2, count: usize) -> Result<(), Failure> {
    for _ in 0..count {
        sender = sender.ready().await?;
        let uri = format!("https://{HOST}/hook");
        let (answer, mut stream) = sender.send_request(request(&uri, ())?, false)?;
        stream.send_data(body(), true)?;
        let answer = answer.await?;
        check(answer.status().as_u16())?;
        let mut body = answer.into_body();
        while let Some(data) = body.data().await {
            body.flow_control().release_capacity(data?.len())?;
        }
    }
    Ok(())
}

/// What the dispatcher sends.
fn request<B>(uri: &str, body: B) -> Result<Request<B>, http::Error> {
    let signature = "v1=5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592";
    let builder = Request::post(uri).header("content-type", "application/json");
    let builder = builder.header("service-signature", format!("t=1795619045,{signature}"));
    let builder = builder.header("webhook-id", "evt_01m89krfcmak2t3p4k848948dc");
    let builder = builder.header("webhook-timestamp", "1795619045");
    let builder = builder.header("webhook-signature", format!("v1,{}", signature.len()));
    let builder = builder.header("user-agent", "Weir/0.1.0");
    if uri.starts_with('/') { builder.header("host", HOST) } else { builder }.body(body)
}

fn body() -> Bytes {
    Bytes::from_static(&[b'x'; 512])
}

fn check(status: u16) -> Result<(), Failure> {
    if status == 204 { Ok(()) } else { Err(format!("answered {status}").into()) }
}
