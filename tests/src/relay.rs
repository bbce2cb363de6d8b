//! Stands between clients and a server, and delays replies, swallows them, or cuts connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use crate::wait;

/// What happens to the server's replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    /// They arrive at once.
    #[default]
    Pass,
    /// They arrive after this time.
    Delay(Duration),
    /// They never arrive, nor do later ones over the same connection: the server gets all requests.
    Swallow,
    /// As `Swallow`, after the next one.
    SwallowAfterNext,
}

/// A relay to one server.
pub struct Relay {
    address: String,
    shared: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    replies: Replies,
    /// Both sockets of each connection.
    open: Vec<TcpStream>,
    ended: bool,
}

impl Relay {
    /// Starts a relay to the server at `to`.
    #[track_caller]
    pub fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared: Arc<Mutex<State>> = Arc::default();
        let (to, known) = (to.to_owned(), shared.clone());
        let accept = move || {
            for client in listener.incoming().map_while(Result::ok) {
                if known.lock().unwrap().ended {
                    return;
                }
                if let Ok(server) = TcpStream::connect(&to) {
                    join(client, server, &known);
                }
            }
        };
        spawn("relay", accept);
        Self { address, shared }
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Treats replies so from now on.
    pub fn set(&self, replies: Replies) {
        self.shared.lock().unwrap().replies = replies;
    }

    /// Ends all connections; new ones are accepted.
    pub fn cut(&self) {
        for socket in self.shared.lock().unwrap().open.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.lock().unwrap().ended = true;
        let _ = TcpStream::connect(&self.address);
        self.cut();
    }
}

fn join(client: TcpStream, server: TcpStream, shared: &Arc<Mutex<State>>) {
    let copy = |socket: &TcpStream| {
        socket.set_nodelay(true).unwrap();
        socket.try_clone().unwrap()
    };
    shared.lock().unwrap().open.extend([copy(&client), copy(&server)]);
    let requests = (copy(&client), copy(&server));
    spawn("requests", move || pass_on(requests, || Replies::Pass));
    let known = shared.clone();
    spawn("replies", move || pass_on((server, client), || known.lock().unwrap().replies));
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    drop(Builder::new().name(name.to_owned()).spawn(run).unwrap());
}

/// Passes bytes on until either side ends.
fn pass_on((mut from, mut to): (TcpStream, TcpStream), how: impl Fn() -> Replies) {
    let (mut piece, mut swallows) = ([0; 16 << 10], false);
    while let Ok(length) = from.read(&mut piece)
        && length > 0
    {
        if swallows {
            continue;
        }
        match how() {
            Replies::Pass => {}
            Replies::Delay(time) => wait::pass(time),
            Replies::SwallowAfterNext => swallows = true,
            Replies::Swallow => {
                swallows = true;
                continue;
            }
        }
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
