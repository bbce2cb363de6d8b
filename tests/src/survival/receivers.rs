//! The customers' servers: one port, an endpoint for each path. They check every delivery with
//! their own code, record it, and answer as their [`cast::Temper`] says.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::cast::{self, Conduct, ENDPOINTS, HOOKS, KINDS, WORKSPACES};
use super::events::{Event, Mark, given_id};
use super::history::{History, Start};
use crate::http1::{Framing, Head, Reader};
use crate::receiver::{SIGNATURE, sign, sign_standard};
use crate::rng::SeededRng;
use crate::wait;

/// Longer than the dispatcher keeps an idle connection.
const IDLE: Duration = Duration::from_secs(300);

/// The tolerance for a signature's time that the documentation recommends to receivers.
const FRESH_SECONDS: u64 = 300;

/// All endpoints.
#[derive(Debug)]
pub struct Receivers {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    history: Arc<History>,
    rng: Mutex<SeededRng>,
    /// The secrets of the webhooks, in the order of [`HOOKS`].
    secrets: OnceLock<Vec<String>>,
    /// Whether all endpoints are healthy from now on.
    healed: AtomicBool,
    /// Whether the dispatcher's wall clock is the machine's.
    clock_holds: bool,
    closing: AtomicBool,
}

/// A checked delivery.
enum Found {
    Event { mark: Mark, id: String, hash: u64 },
    Ping { id: String },
}

impl Receivers {
    /// Starts to listen.
    pub fn start(history: &Arc<History>, clock_holds: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            history: Arc::clone(history),
            rng: Mutex::new(SeededRng::stream(history.seed, 1)),
            secrets: OnceLock::new(),
            healed: AtomicBool::new(false),
            clock_holds,
            closing: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = Builder::new().name("receivers".to_owned());
        let acceptor = acceptor.spawn(move || accept(&accepting, &listener)).unwrap();
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// The URL of an endpoint.
    pub fn url(&self, endpoint: usize) -> String {
        format!("http://{}/e{endpoint}", self.address)
    }

    /// Sets the secrets of the webhooks, in the order of [`HOOKS`]; called once.
    pub fn set_secrets(&self, secrets: Vec<String>) {
        self.shared.secrets.set(secrets).unwrap();
    }

    /// Makes all endpoints healthy from now on.
    pub fn heal(&self) {
        self.shared.healed.store(true, Ordering::SeqCst);
    }

    /// Whether an endpoint is not in an outage.
    pub fn is_healthy(&self, endpoint: usize) -> bool {
        let out = ENDPOINTS[endpoint].is_out(self.shared.history.elapsed());
        !out || self.shared.healed.load(Ordering::SeqCst)
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // This connection wakes the acceptor, which then sees the flag.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept() else { continue };
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(shared);
        let server = Builder::new().name("a receiver".to_owned());
        // An error means that the dispatcher closed the connection, as it does when it is killed.
        server.spawn(move || shared.serve(&stream)).unwrap();
    }
}

impl Shared {
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IDLE))?;
        let mut reader = Reader::new(stream);
        for reused in std::iter::once(false).chain(std::iter::repeat(true)) {
            let Some(head) = reader.head()? else { break };
            let at = self.history.now();
            let Some(endpoint) = endpoint_of(&head) else {
                self.history.violation(format!("unexpected request {:?}", head.start));
                return Ok(());
            };
            let signed = signed_at(&head);
            let start = Start { at, signed: signed.unwrap_or(0), reused };
            self.history.started(endpoint, start);
            let mut body = Vec::new();
            reader.body(head.framing(Framing::Empty), &mut |piece| body.extend(piece))?;
            let found = match self.check(&head, &body, endpoint) {
                Ok(found) => found,
                Err(why) => {
                    self.history.violation(format!("e{endpoint} receives a wrong delivery: {why}"));
                    return Ok(());
                }
            };
            let kept = match found {
                Found::Ping { id } => {
                    let mut state = self.history.state();
                    state.pings.entry(id).or_default().arrived.push(at);
                    drop(state);
                    answer(stream, Conduct::OK)
                }
                Found::Event { mark, id, hash } => {
                    let pair = (mark, endpoint);
                    let nth = self.history.arrived(pair, start, &id, hash);
                    let conduct = self.conduct(endpoint, mark);
                    wait::pass(conduct.after);
                    self.history.responded(pair, nth, conduct.status);
                    answer(stream, conduct)
                }
            };
            if !kept? {
                return stream.shutdown(Shutdown::Both);
            }
        }
        Ok(())
    }

    fn conduct(&self, endpoint: usize, mark: Mark) -> Conduct {
        if self.healed.load(Ordering::SeqCst) {
            return Conduct::OK;
        }
        let mut rng = self.rng.lock().unwrap();
        ENDPOINTS[endpoint].conduct(self.history.elapsed(), mark.number(), &mut rng)
    }

    /// Checks a delivery, and returns what it is.
    fn check(&self, head: &Head, body: &[u8], endpoint: usize) -> Result<Found, String> {
        let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
        let envelope: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let member =
            |name: &str| envelope[name].as_str().ok_or_else(|| format!("no `{name}` in {text}"));
        let (id, kind) = (member("id")?, member("type")?);
        let (workspace, created_at) = (member("workspace_id")?, member("created_at")?);
        let hook =
            HOOKS.iter().position(|hook| WORKSPACES[hook.0] == workspace && hook.1 == endpoint);
        let hook = hook.ok_or_else(|| format!("{workspace} has no webhook at e{endpoint}"))?;
        let secrets = self.secrets.get().ok_or("no webhook is registered yet")?;
        self.check_signature(head, body, id, &secrets[hook])?;
        if kind == "webhook.ping" {
            return Ok(Found::Ping { id: id.to_owned() });
        }
        let mark = Mark::of(text).ok_or_else(|| format!("no mark in {text}"))?;
        let event = Event::new(self.history.seed, mark);
        if text != event.delivered(id, created_at) {
            return Err(format!("{mark}: expected the posted bytes, found {text}"));
        }
        if !cast::reached(event.workspace, event.kind).any(|one| one == endpoint) {
            return Err(format!(
                "{mark} has type {}, to which its workspace does not subscribe at e{endpoint}",
                KINDS[event.kind]
            ));
        }
        let given = self.history.state().calls.get(&mark.call).map(|call| call.given_ids);
        match given {
            None => return Err(format!("{mark} was never posted")),
            Some(true) if given_id(mark) != id => {
                return Err(format!("{mark}: expected id {}, found {id}", given_id(mark)));
            }
            _ => {}
        }
        let hash = Sha256::digest(body);
        let hash = u64::from_le_bytes(hash[..8].try_into().unwrap());
        Ok(Found::Event { mark, id: id.to_owned(), hash })
    }

    fn check_signature(
        &self,
        head: &Head,
        body: &[u8],
        id: &str,
        secret: &str,
    ) -> Result<(), String> {
        let t = signed_at(head).ok_or_else(|| format!("no signature in {head:?}"))?;
        let expected = format!("t={t},v1={}", sign(secret, t, body));
        if head.all(SIGNATURE) != [expected.as_str()] {
            return Err(format!("expected signature {expected}, found {head:?}"));
        }
        let standard = sign_standard(secret, id, t, body);
        if head.all("webhook-signature") != [standard.as_str()] || head.all("webhook-id") != [id] {
            return Err(format!("expected webhook-signature {standard} of {id}, found {head:?}"));
        }
        if self.clock_holds && wait::unix_seconds().abs_diff(t) > FRESH_SECONDS {
            return Err(format!("signature time {t} is off by more than {FRESH_SECONDS} s"));
        }
        Ok(())
    }
}

fn endpoint_of(head: &Head) -> Option<usize> {
    let path = head.start.strip_prefix("POST /e")?.split(' ').next()?;
    path.parse().ok().filter(|endpoint| *endpoint < ENDPOINTS.len())
}

/// The Unix second of a delivery's signature.
fn signed_at(head: &Head) -> Option<u64> {
    head.field(SIGNATURE)?.strip_prefix("t=")?.split(',').next()?.parse().ok()
}

/// Sends the response; false if the connection must be closed instead.
fn answer(mut stream: &TcpStream, conduct: Conduct) -> io::Result<bool> {
    let Some(status) = conduct.status else { return Ok(false) };
    let length = if status == 204 { "" } else { "Content-Length: 0\r\n" };
    stream.write_all(format!("HTTP/1.1 {status} Scripted\r\n{length}\r\n").as_bytes())?;
    Ok(true)
}
