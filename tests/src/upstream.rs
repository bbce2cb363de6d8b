//! An upstream that records every byte it receives and answers by script.
//!
//! Invariant: it records a request before it sends any byte of the response, so a test that has
//! the response sees the whole request.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use crate::answer::{After, Answer};
use crate::http1::{Framing, Head, Reader};
use crate::wait::{self, Deadline, PATIENCE};

/// One request as it arrived.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The index of its connection, counted from 0 in order of acceptance.
    pub connection: usize,
    /// Its request line and fields.
    pub head: Head,
    /// Its body so far, without the framing.
    pub body: Vec<u8>,
    /// Whether the body has ended.
    pub complete: bool,
    /// When its head was complete, in milliseconds since 1970.
    pub at_ms: u64,
}

impl Received {
    /// The method of the request line.
    pub fn method(&self) -> &str {
        self.head.start.split(' ').next().unwrap_or_default()
    }

    /// The target of the request line, byte for byte.
    pub fn target(&self) -> Vec<u8> {
        let line = self.head.raw.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let mut words = line.splitn(2, |byte| *byte == b' ').skip(1);
        let rest = words.next().unwrap_or_default();
        let end = rest.iter().rposition(|byte| *byte == b' ').unwrap_or(rest.len());
        rest[..end].to_vec()
    }
}

/// Everything an upstream has seen up to now.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The raw bytes of each connection, in order of acceptance.
    pub connections: Vec<Vec<u8>>,
    /// The requests, in the order in which their heads were complete.
    pub requests: Vec<Received>,
}

type Script = dyn Fn(&Received) -> Answer + Send + Sync;

/// A server on a free port.
pub struct Upstream {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
    /// Reserves the port and refuses connections while the server is stopped.
    parked: Option<Socket>,
}

struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
    script: Mutex<Arc<Script>>,
    /// Answers once the body is there, instead of `script`.
    of_whole: Mutex<Option<Arc<Script>>>,
    open: Mutex<HashMap<usize, Weak<TcpStream>>>,
    stopping: AtomicBool,
    /// Whether requests and bytes are no longer recorded.
    forgetful: AtomicBool,
}

impl Upstream {
    /// Starts a server that answers every request with `200` and `hello`.
    pub fn start() -> Self {
        let mut upstream = Self::refusing();
        upstream.start_again();
        upstream
    }

    /// Reserves a port that refuses connections until [`Upstream::start_again`].
    pub fn refusing() -> Self {
        let script = |_: &Received| Answer::ok("hello").field("Content-Type", "text/plain");
        let shared = Shared {
            seen: Mutex::default(),
            changed: Condvar::new(),
            script: Mutex::new(Arc::new(script)),
            of_whole: Mutex::default(),
            open: Mutex::default(),
            stopping: AtomicBool::new(true),
            forgetful: AtomicBool::new(false),
        };
        let parked = park("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = parked.local_addr().unwrap().as_socket().unwrap();
        Self { shared: Arc::new(shared), address, acceptor: None, parked: Some(parked) }
    }

    /// Where it listens, as `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Answers by `script` from the next request on.
    pub fn answer(&self, script: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap() = Arc::new(script);
        *self.shared.of_whole.lock().unwrap() = None;
    }

    /// Answers whole requests by `script` from the next one on, for answers that need the body.
    pub fn answer_whole(&self, script: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        *self.shared.of_whole.lock().unwrap() = Some(Arc::new(script));
    }

    /// Sends this response to every request from the next one on.
    pub fn always(&self, answer: Answer) {
        self.answer(move |_| answer.clone());
    }

    /// Records nothing from now on: for traffic that would fill the memory of all tests.
    pub fn forget(&self) {
        self.shared.forgetful.store(true, Ordering::SeqCst);
    }

    /// Refuses connections from now on, and closes those that are open.
    pub fn stop(&mut self) {
        if self.halt() {
            // A child process that is starting may have a copy of the listener until its exec.
            let free = || park(self.address).ok();
            self.parked = Some(wait::until("the port of a stopped upstream", free));
        }
    }

    /// Listens again on the same port.
    pub fn start_again(&mut self) {
        let Some(socket) = self.parked.take() else { return };
        socket.listen(1024).unwrap();
        let listener = TcpListener::from(socket);
        self.shared.stopping.store(false, Ordering::SeqCst);
        let shared = Arc::clone(&self.shared);
        let acceptor = named(format!("upstream {}", self.address));
        self.acceptor = Some(acceptor.spawn(move || shared.accept(&listener)).unwrap());
    }

    /// A copy of everything seen up to now.
    pub fn seen(&self) -> Seen {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Looks at everything seen up to now, without a copy.
    pub fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.shared.seen.lock().unwrap())
    }

    /// A copy of the requests seen up to now.
    pub fn requests(&self) -> Vec<Received> {
        self.seen().requests
    }

    /// The one request seen up to now.
    pub fn only(&self) -> Received {
        let requests = self.requests();
        let [request] = requests.as_slice() else {
            panic!("expected one request, saw {requests:#?}")
        };
        request.clone()
    }

    /// The request seen last.
    pub fn last(&self) -> Received {
        self.requests().pop().unwrap_or_else(|| panic!("no request has reached the upstream"))
    }

    /// Checks that no client has connected up to now.
    pub fn assert_untouched(&self) {
        let seen = self.seen();
        assert!(seen.connections.is_empty(), "the upstream was reached: {seen:#?}");
    }

    /// Waits until what was seen satisfies `look`.
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut(&Seen) -> Option<T>) -> T {
        let deadline = Deadline::after(PATIENCE);
        let mut seen = self.shared.seen.lock().unwrap();
        loop {
            if let Some(found) = look(&seen) {
                return found;
            }
            let Some(left) = deadline.left() else {
                let seen = seen.clone();
                panic!("timed out: {what} at the upstream, which has seen {seen:#?}");
            };
            seen = self.shared.changed.wait_timeout(seen, left).unwrap().0;
        }
    }

    /// Ends the acceptor and every connection; false if there is no acceptor.
    fn halt(&mut self) -> bool {
        let Some(acceptor) = self.acceptor.take() else { return false };
        self.shared.stopping.store(true, Ordering::SeqCst);
        // This connection wakes the acceptor, which then sees the flag.
        drop(TcpStream::connect(self.address));
        // A poisoned lock means that a test has already failed and reported it.
        let _ = acceptor.join();
        let open = self.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.values().filter_map(Weak::upgrade) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        true
    }

    /// Waits until the heads of at least `count` requests have arrived.
    pub fn wait_for_requests(&self, count: usize) -> Vec<Received> {
        let what = format!("{count} requests");
        self.wait(&what, |seen| (seen.requests.len() >= count).then(|| seen.requests.clone()))
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept() else { continue };
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            let stream = Arc::new(stream);
            let connection = self.change(|seen| {
                seen.connections.push(Vec::new());
                seen.connections.len() - 1
            });
            self.open.lock().unwrap().insert(connection, Arc::downgrade(&stream));
            let shared = Arc::clone(&self);
            // An error means that the peer disconnected.
            let server = named(format!("upstream connection {connection}"));
            server.spawn(move || shared.serve(connection, &stream)).unwrap();
        }
    }

    fn serve(&self, connection: usize, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        // The timeouts keep a thread from outliving its test for long.
        stream.set_read_timeout(Some(PATIENCE * 6))?;
        stream.set_write_timeout(Some(PATIENCE * 6))?;
        let mut reader = Reader::new(Tap { shared: self, connection, stream });
        while let Some(head) = reader.head()? {
            let at_ms = wait::unix_millis();
            let received = Received { connection, head, at_ms, ..Received::default() };
            let script = Arc::clone(&self.script.lock().unwrap());
            let method = received.method().to_owned();
            let framing = received.head.framing(Framing::Empty);
            let continues = received.head.field("expect").is_some();
            let answer = script(&received);
            let number = self.change(|seen| {
                let number = seen.requests.len();
                if !self.forgetful.load(Ordering::SeqCst) {
                    seen.requests.push(received);
                }
                number
            });
            let mut after = None;
            if answer.at_head {
                after = Some(answer.play(&method, stream)?);
            } else if continues {
                let mut writer = stream;
                writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            if after.is_none_or(|after| after == After::Keep) {
                self.receive_body(&mut reader, framing, number)?;
            }
            let of_whole = self.of_whole.lock().unwrap().clone();
            let answer = match of_whole.filter(|_| after.is_none()) {
                Some(script) => {
                    let received = self.seen.lock().unwrap().requests[number].clone();
                    script(&received)
                }
                None => answer,
            };
            match after.map_or_else(|| answer.play(&method, stream), Ok)? {
                After::Keep => {}
                After::Close => return stream.shutdown(Shutdown::Both),
                After::Reset => return SockRef::from(stream).set_linger(Some(Duration::ZERO)),
            }
        }
        stream.shutdown(Shutdown::Both)
    }

    fn receive_body(
        &self,
        reader: &mut Reader<Tap<'_>>,
        framing: Framing,
        number: usize,
    ) -> io::Result<()> {
        reader.body(framing, &mut |piece| {
            self.of_request(number, |request| request.body.extend_from_slice(piece));
        })?;
        self.of_request(number, |request| request.complete = true);
        Ok(())
    }

    /// Changes a recorded request.
    fn of_request(&self, number: usize, act: impl FnOnce(&mut Received)) {
        if !self.forgetful.load(Ordering::SeqCst) {
            self.change(|seen| act(&mut seen.requests[number]));
        }
    }

    fn change<T>(&self, act: impl FnOnce(&mut Seen) -> T) -> T {
        let outcome = act(&mut self.seen.lock().unwrap());
        self.changed.notify_all();
        outcome
    }
}

/// Records the bytes that are read from a connection.
struct Tap<'a> {
    shared: &'a Shared,
    connection: usize,
    stream: &'a TcpStream,
}

impl Read for Tap<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        let count = stream.read(into)?;
        let piece = &into[..count];
        if !self.shared.forgetful.load(Ordering::SeqCst) {
            self.shared.change(|seen| seen.connections[self.connection].extend_from_slice(piece));
        }
        Ok(count)
    }
}

fn named(name: String) -> Builder {
    Builder::new().name(name)
}

/// Binds without listening: the kernel refuses connections and gives the port to no other process.
fn park(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
