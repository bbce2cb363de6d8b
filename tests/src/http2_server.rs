//! A scripted HTTP/2 server without TLS.
//!
//! Of a request it only notices the beginning and the end; the test decides on the response.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::frames::{FRAME_BYTES, Frame, PREFACE, flag, kind};
use crate::wait::{Deadline, PATIENCE};

/// A step of a server's script, played once a request has begun.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends a head, or trailers.
    Head(Vec<(&'static str, String)>),
    /// Sends a head, or trailers, and ends the stream.
    LastHead(Vec<(&'static str, String)>),
    /// Sends a piece of a body.
    Body(Vec<u8>),
    /// Sends the last piece of a body.
    LastBody(Vec<u8>),
    /// Ends the stream with an error code.
    Reset(u32),
    /// Sends GOAWAY with this stream's number less `before` as the last stream, and an error code.
    GoAway {
        /// The distance of the last accepted stream from this one.
        before: u32,
        /// The error code.
        code: u32,
    },
    /// Sends these bytes, which need not be a valid frame.
    Raw(Vec<u8>),
    /// Sends these bytes repeatedly, for as long as the peer reads them.
    Forever(Vec<u8>),
    /// Waits until the request has ended.
    AwaitEnd,
    /// Closes the connection.
    Close,
}

/// Identifies a request: its connection and its index on it, both counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The connection.
    pub connection: usize,
    /// Its index on the connection.
    pub nth: usize,
    /// Its stream id.
    pub stream: u32,
}

type Script = dyn Fn(Begun) -> Vec<Step> + Send + Sync;

/// A server on a free port.
pub struct Http2Server {
    address: SocketAddr,
    seen: Arc<(Mutex<Vec<Begun>>, Condvar)>,
}

impl Http2Server {
    /// Starts a server that answers each request by `script`.
    pub fn start(script: impl Fn(Begun) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start_with(&[], script)
    }

    /// The same; the server starts with these settings, each a number and a value.
    pub fn start_with(
        settings: &[(u16, u32)],
        script: impl Fn(Begun) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let first = Frame::settings(settings);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let (script, noted): (Arc<Script>, _) = (Arc::new(script), Arc::clone(&seen));
        let accepting = move || {
            for (connection, stream) in listener.incoming().flatten().enumerate() {
                let (script, seen) = (Arc::clone(&script), Arc::clone(&noted));
                let first = first.clone();
                // An error means that the client disconnected.
                let serving = move || serve(&stream, &first, connection, &*script, &seen);
                thread::Builder::new().name("http2".to_owned()).spawn(serving).unwrap();
            }
        };
        thread::Builder::new().name("http2".to_owned()).spawn(accepting).unwrap();
        Self { address, seen }
    }

    /// Its address.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The requests that have begun.
    pub fn seen(&self) -> Vec<Begun> {
        self.seen.0.lock().unwrap().clone()
    }

    /// Waits until at least `count` requests have begun.
    #[track_caller]
    pub fn wait_for(&self, count: usize) {
        let deadline = Deadline::after(PATIENCE);
        let mut seen = self.seen.0.lock().unwrap();
        while seen.len() < count {
            let left = deadline.left().unwrap_or_else(|| panic!("{count} requests, not {seen:?}"));
            seen = self.seen.1.wait_timeout(seen, left).unwrap().0;
        }
    }
}

/// A head with this status.
pub fn head(status: u16, fields: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned()));
    [(":status", status.to_string())].into_iter().chain(fields).collect()
}

fn serve(
    mut stream: &TcpStream,
    first: &Frame,
    connection: usize,
    script: &Script,
    seen: &(Mutex<Vec<Begun>>, Condvar),
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE * 6))?;
    stream.set_write_timeout(Some(PATIENCE * 6))?;
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface)?;
    send(stream, first)?;
    let (mut nth, mut ahead, mut piece) = (0, Vec::new(), vec![0; FRAME_BYTES]);
    let mut at_end: HashMap<u32, Vec<Step>> = HashMap::new();
    loop {
        let Some(frame) = Frame::take(&mut ahead) else {
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                count => ahead.extend_from_slice(&piece[..count]),
            }
            continue;
        };
        match (frame.kind, frame.flags) {
            (kind::SETTINGS, 0) => send(stream, &Frame::settings_ack())?,
            (kind::PING, 0) => send(stream, &frame.clone().flags(flag::ACK))?,
            (kind::HEADERS, _) => {
                let begun = Begun { connection, nth, stream: frame.stream };
                seen.0.lock().unwrap().push(begun);
                seen.1.notify_all();
                nth += 1;
                at_end.insert(frame.stream, script(begun));
            }
            (kind::DATA, _) => {}
            _ => continue,
        }
        // Steps before `AwaitEnd` run now, the others at the end of the request.
        let ended = frame.flags & flag::END_STREAM != 0;
        let Some(mut steps) = at_end.remove(&frame.stream) else { continue };
        let waits = steps.iter().position(|step| matches!(step, Step::AwaitEnd));
        let rest = waits.filter(|_| !ended).map(|at| steps.split_off(at));
        for step in steps {
            if !play(stream, frame.stream, step)? {
                return stream.shutdown(std::net::Shutdown::Both);
            }
        }
        at_end.extend(rest.map(|rest| (frame.stream, rest)));
    }
}

/// Performs one step; false if the connection must be closed.
fn play(mut stream: &TcpStream, number: u32, step: Step) -> io::Result<bool> {
    match step {
        Step::Head(fields) => send(stream, &Frame::headers(number, &fields, false))?,
        Step::LastHead(fields) => send(stream, &Frame::headers(number, &fields, true))?,
        Step::Body(body) => send(stream, &Frame::data(number, body, false))?,
        Step::LastBody(body) => send(stream, &Frame::data(number, body, true))?,
        Step::Reset(code) => send(stream, &Frame::reset(number, code))?,
        Step::GoAway { before, code } => {
            let last = number.saturating_sub(2 * before);
            let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
            send(stream, &Frame::new(kind::GOAWAY, 0, 0, payload))?;
        }
        Step::Raw(bytes) => stream.write_all(&bytes)?,
        Step::Forever(bytes) => loop {
            stream.write_all(&bytes)?;
        },
        Step::AwaitEnd => {}
        Step::Close => return Ok(false),
    }
    Ok(true)
}

fn send(mut stream: &TcpStream, frame: &Frame) -> io::Result<()> {
    stream.write_all(&frame.bytes())
}
