//! Stands in for the backends that `./run` puts behind the gateway.
//!
//! It answers any request with a small JSON document that describes the request, and so shows what
//! the gateway forwards. One thread per connection; each connection serves any number of requests.
//!
//! Not here: recording and scripted responses, which the tests need (`weir_tests::upstream`).

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread::{self, Builder};
use std::time::Duration;

use serde_json::{Map, Value, json};
use weir_tests::http1::{Framing, Head, Reader};

/// A connection that is silent for this time is closed.
const SILENCE_MAX: Duration = Duration::from_secs(300);

const USAGE: &str = "usage: demo-backend NAME=ADDRESS..., as in control=127.0.0.1:9001";

fn main() -> ExitCode {
    let backends: Vec<String> = std::env::args().skip(1).collect();
    match listen(&backends) {
        Ok(listeners) => serve(listeners),
        Err(why) => {
            let _ = writeln!(io::stderr(), "demo-backend: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Binds all addresses before it serves any.
fn listen(backends: &[String]) -> Result<Vec<(String, TcpListener)>, String> {
    if backends.is_empty() {
        return Err(USAGE.to_owned());
    }
    let bind = |backend: &String| {
        let (name, address) = backend.split_once('=').ok_or(USAGE)?;
        let listener = TcpListener::bind(address);
        listener
            .map(|listener| (name.to_owned(), listener))
            .map_err(|why| format!("cannot listen on {address}: {why}"))
    };
    backends.iter().map(bind).collect()
}

fn serve(listeners: Vec<(String, TcpListener)>) -> ExitCode {
    thread::scope(|threads| {
        for (name, listener) in &listeners {
            threads.spawn(move || accept(name, listener));
        }
    });
    ExitCode::FAILURE
}

fn accept(name: &str, listener: &TcpListener) {
    // A connection that fails here was closed by its client in the meantime.
    for stream in listener.incoming().flatten() {
        let name = name.to_owned();
        // An error means that the client disconnected. If no thread starts, the connection is
        // closed.
        let _ = Builder::new().spawn(move || converse(&name, &stream));
    }
}

/// Answers the requests of one connection, until it ends.
fn converse(name: &str, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let mut reader = Reader::new(stream);
    while let Some(head) = reader.head()? {
        if head.field("expect").is_some() {
            writer(stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut body_bytes = 0;
        reader.body(head.framing(Framing::Empty), &mut |piece| body_bytes += piece.len())?;
        writer(stream).write_all(&answer(name, &head, body_bytes))?;
        if head.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            break;
        }
    }
    Ok(())
}

fn writer(stream: &TcpStream) -> impl Write {
    stream
}

/// The response: the request as JSON, in one message.
fn answer(name: &str, head: &Head, body_bytes: usize) -> Vec<u8> {
    let (method, rest) = head.start.split_once(' ').unwrap_or_default();
    let (target, _) = rest.rsplit_once(' ').unwrap_or_default();
    let headers: Map<String, Value> = head
        .fields
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.as_str().into()))
        .collect();
    let received = json!({
        "backend": name,
        "method": method,
        "target": target,
        "headers": headers,
        "body_bytes": body_bytes,
    });
    let body = format!("{received:#}\n");
    let length = body.len();
    let shown = if method == "HEAD" { "" } else { &body };
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n\
         {shown}"
    )
    .into_bytes()
}
