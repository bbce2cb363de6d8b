//! A client on a raw socket, or on TLS over one: sends exactly the bytes it is given and reads
//! one response at a time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::{Domain, Socket, Type};

use crate::http1::{Framing, Head, Reader};
use crate::request::Request;
use crate::response::Response;
use crate::wait::PATIENCE;

/// One connection to a server.
#[derive(Debug)]
pub struct Client {
    reader: Reader<Stream>,
}

/// A socket after its handshake.
pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A socket whose reads and writes time out.
pub fn prepare(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Performs a TLS handshake on a socket, with the server name `name`.
pub fn handshake(socket: TcpStream, config: &Arc<ClientConfig>, name: &str) -> io::Result<Tls> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connection = ClientConnection::new(config.clone(), name).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// A plain connection, or TLS.
#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(stream) => read_tls(stream, into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => {
                let count = stream.conn.writer().write(bytes)?;
                write_tls(stream).map(|()| count)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => write_tls(stream),
        }
    }
}

/// Sends the pending TLS records.
fn write_tls(stream: &mut Tls) -> io::Result<()> {
    while stream.conn.wants_write() {
        stream.conn.write_tls(&mut stream.sock)?;
    }
    Ok(())
}

/// Reads even if writes fail: a response may arrive from a server that no longer reads.
pub(crate) fn read_tls(stream: &mut Tls, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.conn.reader().read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        match stream.conn.read_tls(&mut stream.sock) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let processed = stream.conn.process_new_packets();
        let _ = write_tls(stream);
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    }
}

impl Client {
    /// Connects to `address`.
    #[track_caller]
    pub fn connect(address: &str) -> Self {
        Self::try_connect(address).unwrap_or_else(|error| panic!("connect to {address}: {error}"))
    }

    /// Connects to `address`, which may have no listener.
    pub fn try_connect(address: &str) -> io::Result<Self> {
        Self::over(TcpStream::connect(address)?)
    }

    /// Connects from a local address, which may be any of 127.0.0.0/8.
    #[track_caller]
    pub fn connect_from(from: &str, address: &str) -> Self {
        let (from, to): (IpAddr, SocketAddr) = (from.parse().unwrap(), address.parse().unwrap());
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
        socket.connect(&to.into()).unwrap_or_else(|error| panic!("connect to {to}: {error}"));
        Self::over(socket.into()).unwrap()
    }

    /// Connects with a small receive buffer (16 KiB).
    #[track_caller]
    pub fn connect_with_small_buffer(address: &str) -> Self {
        let to: SocketAddr = address.parse().unwrap();
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        socket.connect(&to.into()).unwrap_or_else(|error| panic!("connect to {to}: {error}"));
        Self::over(socket.into()).unwrap()
    }

    /// Uses an established connection.
    fn over(stream: TcpStream) -> io::Result<Self> {
        Ok(Self { reader: Reader::new(Stream::Plain(prepare(stream)?)) })
    }

    /// Continues over TLS, with the server name `name`.
    pub fn try_secured(self, config: &Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        let Stream::Plain(socket) = self.reader.into_stream() else { panic!("TLS already") };
        let stream = handshake(socket, config, name)?;
        Ok(Self { reader: Reader::new(Stream::Tls(Box::new(stream))) })
    }

    /// Continues over TLS, with the server name `name`.
    #[track_caller]
    pub fn secured(self, config: &Arc<ClientConfig>, name: &str) -> Self {
        let secured = self.try_secured(config, name);
        secured.unwrap_or_else(|error| panic!("TLS as {name}: {error}"))
    }

    /// The TLS state of the connection.
    #[track_caller]
    pub fn tls(&self) -> &ClientConnection {
        match self.reader.stream() {
            Stream::Tls(stream) => &stream.conn,
            Stream::Plain(_) => panic!("no TLS here"),
        }
    }

    /// Sends exactly these bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap_or_else(|error| panic!("send: {error}"));
    }

    /// Sends these bytes to a server that may have closed the connection.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let stream = self.reader.stream_mut();
        stream.write_all(bytes.as_ref())?;
        stream.flush()
    }

    /// Closes the sending half, over TLS after a close_notify.
    pub fn finish(&mut self) {
        let stream = self.reader.stream_mut();
        if let Stream::Tls(stream) = stream {
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
        stream.socket().shutdown(Shutdown::Write).unwrap();
    }

    /// Sends a request and reads the answer.
    #[track_caller]
    pub fn call(&mut self, request: &Request) -> Response {
        // A refusal may arrive, and the connection close, before the server has read all of it.
        let _ = self.try_send(request.head_bytes());
        let _ = self.try_send(request.body_bytes());
        if request.is_head() { self.read_head_only() } else { self.read() }
    }

    /// GETs `target` from the control host.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Response {
        self.call(&Request::get(target))
    }

    /// Sends raw bytes and reads the answer.
    #[track_caller]
    pub fn exchange(&mut self, bytes: impl AsRef<[u8]>) -> Response {
        self.send(bytes);
        self.read()
    }

    /// Sends raw bytes and reads the response, if there is one.
    pub fn try_exchange(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<Response> {
        // A server that has closed the connection may have answered first.
        let _ = self.try_send(bytes);
        self.try_read()
    }

    /// Reads one whole response.
    #[track_caller]
    pub fn read(&mut self) -> Response {
        self.try_read().unwrap_or_else(|error| panic!("read an answer: {error}"))
    }

    /// Reads one response, which may be truncated.
    pub fn try_read(&mut self) -> io::Result<Response> {
        let mut response = self.try_read_head_only()?;
        let bodiless = matches!(response.status, 101 | 204 | 304);
        let framing = response.head.framing(Framing::UntilClose);
        if !bodiless {
            self.reader.body(framing, &mut |piece| response.body.extend_from_slice(piece))?;
        }
        Ok(response)
    }

    /// Reads the response to a HEAD request, or the head of a response whose body is still
    /// arriving.
    #[track_caller]
    pub fn read_head_only(&mut self) -> Response {
        self.try_read_head_only().unwrap_or_else(|error| panic!("read a head: {error}"))
    }

    /// Reads a head, unless the connection ends first.
    pub fn try_read_head_only(&mut self) -> io::Result<Response> {
        let mut response = Response::default();
        loop {
            let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
            let head = self.reader.head()?.ok_or_else(ended)?;
            let status = status(&head)?;
            // 101 is final: no other HTTP response follows it.
            if (100..200).contains(&status) && status != 101 {
                response.interim.push(head);
                continue;
            }
            (response.status, response.head) = (status, head);
            return Ok(response);
        }
    }

    /// Reads raw bytes up to and including `needle`.
    #[track_caller]
    pub fn read_until(&mut self, needle: impl AsRef<[u8]>) -> Vec<u8> {
        let needle = needle.as_ref();
        self.reader.until(needle).unwrap_or_else(|error| {
            panic!("read up to {:?}: {error}", String::from_utf8_lossy(needle))
        })
    }

    /// Reads and discards this number of raw bytes.
    #[track_caller]
    pub fn skip(&mut self, bytes: u64) {
        let mut left = bytes;
        let skipped = self.reader.body(Framing::Length(bytes), &mut |piece| {
            left -= piece.len() as u64;
        });
        skipped.unwrap_or_else(|error| panic!("{left} of {bytes} bytes missing: {error}"));
    }

    /// Reads the next interim response, and nothing after it.
    #[track_caller]
    pub fn read_interim(&mut self) -> Head {
        let head = self.reader.head().unwrap().unwrap_or_else(|| panic!("the server closed"));
        assert!(status(&head).unwrap() < 200, "{}", head.start);
        head
    }

    /// Waits until the server ends the connection; checks that no byte arrives before.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let rest = self.read_to_end();
        assert!(rest.is_empty(), "unread bytes: {:?}", String::from_utf8_lossy(&rest));
    }

    /// Reads until the server's close_notify.
    #[track_caller]
    pub fn read_to_close_notify(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            match self.reader.some() {
                Ok(piece) if piece.is_empty() => return all,
                Ok(piece) => all.extend(piece),
                Err(error) => panic!("no close_notify ({error}) after {} bytes", all.len()),
            }
        }
    }

    /// Reads until the server ends the connection in any way.
    #[track_caller]
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            match self.reader.some() {
                Ok(piece) if piece.is_empty() => return all,
                Ok(piece) => all.extend(piece),
                Err(error) if is_end(&error) => return all,
                Err(error) => panic!("the server keeps the connection open: {error}"),
            }
        }
    }
}

/// An abrupt end: a TCP reset, or TLS without close_notify.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)
}

fn status(head: &Head) -> io::Result<u16> {
    let code = head.start.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
    code.and_then(|code| code.parse().ok())
        .ok_or_else(|| io::Error::other(format!("{:?} is no status line", head.start)))
}
