//! An HTTP/2 client on a TLS socket: sends the frames it is given, obeys flow control when it
//! sends a body, and records how each stream ended.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::TcpStream;

use httlib_hpack::Decoder;

use crate::authority::Authority;
use crate::client::{Tls, handshake, prepare, read_tls};
use crate::frames::{FRAME_BYTES, Frame, PREFACE, code_name, flag, kind};
use crate::http1::Head;
use crate::request::Request;
use crate::response::Response;

/// The initial flow-control window of each side.
const WINDOW: i64 = 65_535;

/// How a stream ended.
#[derive(Clone, Debug)]
pub enum End {
    /// A whole response.
    Answer(Response),
    /// The server reset it, with this error code.
    Reset(&'static str),
    /// The connection ended first; with the error code of its GOAWAY, if there was one.
    Gone(Option<&'static str>),
}

#[derive(Default)]
struct Stream {
    response: Response,
    window: i64,
    ended: bool,
    reset: Option<u32>,
}

/// One connection to a server.
pub struct Http2 {
    tls: Tls,
    ahead: Vec<u8>,
    decoder: Decoder<'static>,
    streams: HashMap<u32, Stream>,
    next: u32,
    window: i64,
    /// The server's settings, by number.
    pub settings: HashMap<u16, u32>,
    /// The last stream and the error code of the last GOAWAY.
    pub goaway: Option<(u32, &'static str)>,
    /// Whether it acknowledges SETTINGS and PINGs, and sends WINDOW_UPDATE.
    pub polite: bool,
    ended: bool,
}

impl Http2 {
    /// Connects, and sends the preface and empty SETTINGS.
    #[track_caller]
    pub fn connect(address: &str, authority: &Authority) -> Self {
        Self::connect_with(address, authority, &[])
    }

    /// Connects, and sends the preface and these settings.
    #[track_caller]
    pub fn connect_with(address: &str, authority: &Authority, settings: &[(u16, u32)]) -> Self {
        let mut client = Self::raw(address, authority);
        client.send(&[PREFACE, &Frame::settings(settings).bytes()].concat());
        while client.settings.is_empty() {
            assert!(client.step(), "no SETTINGS arrived");
        }
        client
    }

    /// Connects, and sends nothing yet.
    #[track_caller]
    pub fn raw(address: &str, authority: &Authority) -> Self {
        let socket = TcpStream::connect(address).and_then(prepare);
        let tls =
            socket.and_then(|socket| handshake(socket, &authority.speaking("h2"), "localhost"));
        let tls = tls.unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        assert_eq!(tls.conn.alpn_protocol(), Some(&b"h2"[..]));
        Self {
            tls,
            ahead: Vec::new(),
            decoder: Decoder::default(),
            streams: HashMap::new(),
            next: 1,
            window: WINDOW,
            settings: HashMap::new(),
            goaway: None,
            polite: true,
            ended: false,
        }
    }

    /// Sends exactly these bytes to a server that may have closed the connection.
    pub fn send(&mut self, bytes: &[u8]) {
        // What the server sent before it closed can still be read.
        let _ = self.try_send(bytes);
    }

    /// Sends exactly these bytes.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.write_all(bytes)?;
        self.tls.flush()
    }

    /// Sends frames.
    pub fn frames(&mut self, frames: &[Frame]) {
        self.send(&frames.iter().flat_map(Frame::bytes).collect::<Vec<u8>>());
    }

    /// The id of a stream that has not been used.
    pub fn id(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Opens a stream with these fields.
    pub fn open(&mut self, fields: &[(&str, &str)], end: bool) -> u32 {
        let id = self.id();
        self.frames(&Frame::head(id, fields, end));
        id
    }

    /// Opens a stream with the head of a request.
    pub fn head(&mut self, request: &Request, end: bool) -> u32 {
        let fields = request.pseudo_fields();
        let fields: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        self.open(&fields, end)
    }

    /// Sends a request without waiting for an answer.
    pub fn request(&mut self, request: &Request) -> u32 {
        let body = request.content();
        let id = self.head(request, body.is_none());
        if let Some(body) = body {
            self.data(id, &body, true);
        }
        id
    }

    /// Sends a body as the server's windows allow; stops if the server ends the stream first.
    pub fn data(&mut self, id: u32, mut bytes: &[u8], end: bool) {
        if bytes.is_empty() {
            return self.frames(&[Frame::data(id, [], end)]);
        }
        while !bytes.is_empty() && !self.ended {
            let initial = self.settings.get(&4).map_or(WINDOW, |window| i64::from(*window));
            let stream = self.streams.entry(id).or_default();
            if stream.ended || stream.reset.is_some() {
                return;
            }
            let room = (initial + stream.window).min(self.window);
            let count = usize::try_from(room).unwrap_or(0).min(bytes.len()).min(FRAME_BYTES);
            if count == 0 {
                self.step();
                continue;
            }
            stream.window -= count as i64;
            self.window -= count as i64;
            let (piece, rest) = bytes.split_at(count);
            self.frames(&[Frame::data(id, piece, end && rest.is_empty())]);
            bytes = rest;
        }
    }

    /// Sends a request and reads the answer.
    #[track_caller]
    pub fn call(&mut self, request: &Request) -> Response {
        let id = self.request(request);
        self.answer(id)
    }

    /// GETs `target` from the control host.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Response {
        self.call(&Request::get(target))
    }

    /// Waits for a whole answer.
    #[track_caller]
    pub fn answer(&mut self, id: u32) -> Response {
        match self.end(id) {
            End::Answer(response) => response,
            other => panic!("stream {id} ended in {other:?}; goaway: {:?}", self.goaway),
        }
    }

    /// Waits until a stream has ended, for any reason.
    #[track_caller]
    pub fn end(&mut self, id: u32) -> End {
        loop {
            let stream = self.streams.entry(id).or_default();
            if stream.ended {
                return End::Answer(std::mem::take(&mut stream.response));
            }
            if let Some(code) = stream.reset {
                return End::Reset(code_name(code));
            }
            if self.ended {
                return End::Gone(self.goaway.map(|(_, reason)| reason));
            }
            self.step();
        }
    }

    /// The error code of a RST_STREAM for this stream, also after a whole response.
    pub fn reset_of(&self, id: u32) -> Option<&'static str> {
        self.streams.get(&id)?.reset.map(code_name)
    }

    /// The number of body bytes so far.
    pub fn body_so_far(&mut self, id: u32) -> usize {
        self.streams.entry(id).or_default().response.body.len()
    }

    /// Reads until the connection ends, and returns the error code of its GOAWAY.
    #[track_caller]
    pub fn await_close(&mut self) -> Option<&'static str> {
        while !self.ended {
            self.step();
        }
        self.goaway.map(|(_, reason)| reason)
    }

    /// Sends a PING and reads until its ACK: all earlier frames of the server have then been read.
    #[track_caller]
    pub fn settle(&mut self) {
        assert!(self.try_settle(), "the connection has ended: {:?}", self.goaway);
    }

    /// The same; false if the connection ends instead.
    pub fn try_settle(&mut self) -> bool {
        self.frames(&[Frame::ping(*b"settled?")]);
        while let Some(frame) = self.read() {
            self.take(&frame);
            if frame.kind == kind::PING && frame.flags == flag::ACK {
                return true;
            }
        }
        self.ended = true;
        false
    }

    /// Reads and processes one frame; false if the connection has ended.
    #[track_caller]
    pub fn step(&mut self) -> bool {
        match self.read() {
            Some(frame) => self.take(&frame),
            None => self.ended = true,
        }
        !self.ended
    }

    /// The next frame, unprocessed; `None` if the connection has ended.
    #[track_caller]
    pub fn read(&mut self) -> Option<Frame> {
        let mut piece = vec![0; 64 * 1024];
        loop {
            if let Some(frame) = Frame::take(&mut self.ahead) {
                return Some(frame);
            }
            match read_tls(&mut self.tls, &mut piece) {
                Ok(0) => return None,
                Ok(count) => self.ahead.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    panic!("the server sends nothing and keeps the connection open")
                }
                Err(_) => return None,
            }
        }
    }

    fn take(&mut self, frame: &Frame) {
        match frame.kind {
            kind::SETTINGS if frame.flags & flag::ACK == 0 => {
                for at in (0..frame.payload.len()).step_by(6) {
                    let name = u16::from_be_bytes([frame.payload[at], frame.payload[at + 1]]);
                    self.settings.insert(name, frame.number(at + 2));
                }
                if self.polite {
                    self.frames(&[Frame::settings_ack()]);
                }
            }
            kind::PING if frame.flags & flag::ACK == 0 && self.polite => {
                self.frames(&[frame.clone().flags(flag::ACK)]);
            }
            kind::GOAWAY => self.goaway = Some((frame.number(0), code_name(frame.number(4)))),
            kind::RST_STREAM => {
                self.streams.entry(frame.stream).or_default().reset = Some(frame.number(0));
            }
            kind::WINDOW_UPDATE if frame.stream == 0 => self.window += i64::from(frame.number(0)),
            kind::WINDOW_UPDATE => {
                let stream = self.streams.entry(frame.stream).or_default();
                stream.window += i64::from(frame.number(0));
            }
            kind::HEADERS => self.take_head(frame),
            kind::DATA => self.take_data(frame),
            _ => {}
        }
    }

    fn take_head(&mut self, frame: &Frame) {
        assert_eq!(frame.flags & (flag::PADDED | flag::PRIORITY), 0, "{frame:?}");
        let (mut block, mut fields) = (frame.payload.clone(), Vec::new());
        self.decoder.decode(&mut block, &mut fields).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut head = Head::default();
        for (name, value, _) in &fields {
            assert!(!name.iter().any(u8::is_ascii_uppercase), "{:?}", text(name));
            head.fields.push((text(name), text(value)));
        }
        let stream = self.streams.entry(frame.stream).or_default();
        stream.ended |= frame.flags & flag::END_STREAM != 0;
        let Some(status) = head.field(":status").map(|status| status.parse().unwrap()) else {
            stream.response.trailers = head;
            return;
        };
        head.raw =
            head.fields.iter().flat_map(|(n, v)| format!("{n}: {v}\n").into_bytes()).collect();
        if (100..200).contains(&status) {
            stream.response.interim.push(head);
        } else {
            (stream.response.status, stream.response.head) = (status, head);
        }
    }

    fn take_data(&mut self, frame: &Frame) {
        let stream = self.streams.entry(frame.stream).or_default();
        stream.response.body.extend_from_slice(&frame.payload);
        stream.ended |= frame.flags & flag::END_STREAM != 0;
        let (count, open) = (u32::try_from(frame.payload.len()).unwrap(), !stream.ended);
        if count > 0 && self.polite {
            let more = [Frame::window(0, count), Frame::window(frame.stream, count)];
            self.frames(if open { &more } else { &more[..1] });
        }
    }
}
