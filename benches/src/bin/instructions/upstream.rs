//! An upstream whose first answers come together, so that a proxy opens as many connections to it
//! in every run.
//!
//! How many there are decides which pages of its heap a proxy keeps and which it takes and returns
//! with every request: that is 2 % of the instructions of one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread::Builder;

use weir_benches::flags::fail;
use weir_benches::targets::BODY;

/// Listens until the process ends. Of the first `together` connections each answers its first
/// request when all of them have one.
pub(crate) fn upstream(together: usize) -> SocketAddr {
    let bound = TcpListener::bind("127.0.0.1:0");
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = bound.unwrap_or_else(|error| fail(&format!("no port: {error}")));
    spawn(move || {
        let all_here = Arc::new(Barrier::new(together));
        for (nth, stream) in listener.incoming().flatten().enumerate() {
            let all_here = (nth < together).then(|| all_here.clone());
            spawn(move || answer(stream, all_here.as_deref()));
        }
    });
    address
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    let started = Builder::new().name("upstream".to_owned()).spawn(work);
    drop(started.unwrap_or_else(|error| fail(&format!("no thread: {error}"))));
}

/// Answers every request until the peer closes.
fn answer(mut stream: TcpStream, mut all_here: Option<&Barrier>) {
    let response = format!(
        "HTTP/1.1 200 OK\r\nServer: upstream\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    let _ = stream.set_nodelay(true);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(buffer.get(..length).unwrap_or_default());
        if !seen.ends_with(b"\r\n\r\n") {
            continue;
        }
        seen.clear();
        if let Some(all_here) = all_here.take() {
            all_here.wait();
        }
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}
