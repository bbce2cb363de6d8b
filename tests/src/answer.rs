//! An upstream's scripted response: bytes to send, gates to wait at, and ways to end.
//!
//! Not here: the server that plays the script (`upstream`).

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::wait::{self, Deadline, PATIENCE};

/// One write of a flood; so large that the sender is not the bottleneck.
const FLOOD_PIECE_BYTES: usize = 64 * 1024;

/// A script that an upstream plays for one request.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Whether to start once the head is read, before the body.
    pub(crate) at_head: bool,
    steps: Vec<Step>,
}

/// What happens to the connection after a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It serves the next request.
    Keep,
    /// It is closed with a FIN.
    Close,
    /// It is closed with a RST.
    Reset,
}

#[derive(Clone, Debug)]
enum Step {
    Message { status: u16, fields: Vec<(String, String)>, body: Vec<u8> },
    Bytes(Vec<u8>),
    Wait(Gate),
    Flood(u64),
    Drip { piece: Vec<u8>, times: u64, every: Duration },
    End(After),
}

impl Answer {
    /// A whole message with this status and an empty body.
    pub fn status(status: u16) -> Self {
        let message = Step::Message { status, fields: Vec::new(), body: Vec::new() };
        Self { at_head: false, steps: vec![message] }
    }

    /// A whole 200 with this body.
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::status(200).body(body)
    }

    /// An empty script.
    pub fn script() -> Self {
        Self::default()
    }

    /// Adds a field to the last message.
    pub fn field(mut self, name: &str, value: &str) -> Self {
        if let Some(Step::Message { fields, .. }) = self.steps.last_mut() {
            fields.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// Sets the body of the last message, with its `Content-Length`.
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        if let Some(Step::Message { body, .. }) = self.steps.last_mut() {
            *body = bytes.into();
        }
        self
    }

    /// Starts as soon as the head has arrived, while the body may still be arriving.
    pub fn at_head(mut self) -> Self {
        self.at_head = true;
        self
    }

    /// Then sends exactly these bytes.
    pub fn send(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.then(Step::Bytes(bytes.into()))
    }

    /// Then plays another script.
    pub fn and(mut self, other: Self) -> Self {
        self.steps.extend(other.steps);
        self
    }

    /// Then waits until the test opens the gate.
    pub fn wait(self, gate: &Gate) -> Self {
        self.then(Step::Wait(gate.clone()))
    }

    /// Then sends `bytes` filler bytes.
    pub fn flood(self, bytes: u64) -> Self {
        self.then(Step::Flood(bytes))
    }

    /// Then sends these bytes `times` times, with a pause of `every` before each.
    pub fn drip(self, piece: impl Into<Vec<u8>>, times: u64, every: Duration) -> Self {
        self.then(Step::Drip { piece: piece.into(), times, every })
    }

    /// Then pauses, for tests of slowness.
    pub fn pause(self, time: Duration) -> Self {
        self.drip("", 1, time)
    }

    /// Then closes the connection with a FIN.
    pub fn close(self) -> Self {
        self.then(Step::End(After::Close))
    }

    /// Then closes the connection with a RST.
    pub fn reset(self) -> Self {
        self.then(Step::End(After::Reset))
    }

    fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Plays the script to a request made with `method`.
    pub(crate) fn play(&self, method: &str, mut stream: impl Write) -> io::Result<After> {
        for step in &self.steps {
            match step {
                Step::Message { status, fields, body } => {
                    stream.write_all(&message(method, *status, fields, body))?;
                }
                Step::Bytes(bytes) => stream.write_all(bytes)?,
                Step::Wait(gate) => gate.wait()?,
                Step::Flood(bytes) => flood(&mut stream, *bytes)?,
                Step::Drip { piece, times, every } => {
                    for _ in 0..*times {
                        wait::pass(*every);
                        stream.write_all(piece)?;
                    }
                }
                Step::End(after) => return Ok(*after),
            }
        }
        Ok(After::Keep)
    }
}

/// A point in a script where it waits until the test opens the gate.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    /// A gate that is shut.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the gate for all scripts, permanently.
    pub fn open(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }

    fn wait(&self) -> io::Result<()> {
        let deadline = Deadline::after(PATIENCE * 2);
        let mut open = self.open.0.lock().unwrap();
        while !*open {
            let left = deadline.left().ok_or(io::ErrorKind::TimedOut)?;
            open = self.open.1.wait_timeout(open, left).unwrap().0;
        }
        Ok(())
    }
}

fn message(method: &str, status: u16, fields: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let reason = if status == 200 { "OK" } else { "Scripted" };
    let mut bytes = format!("HTTP/1.1 {status} {reason}\r\n").into_bytes();
    for (name, value) in fields {
        bytes.extend(format!("{name}: {value}\r\n").bytes());
    }
    let bodiless = status < 200 || status == 204 || status == 304;
    if !bodiless {
        bytes.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
    }
    bytes.extend(b"\r\n");
    if !bodiless && method != "HEAD" {
        bytes.extend(body);
    }
    bytes
}

fn flood(stream: &mut impl Write, bytes: u64) -> io::Result<()> {
    let piece = vec![b'~'; FLOOD_PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(FLOOD_PIECE_BYTES as u64);
        stream.write_all(&piece[..usize::try_from(count).unwrap()])?;
        left -= count;
    }
    Ok(())
}
