//! Threads call over links of their own to a server that says over which one each call came.

use std::io;
use std::sync::atomic::AtomicUsize;

use redis::{Value, cmd};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};
use weir_common::time::UnixTime;

use super::super::address::Topology;
use super::super::connection::StoreConnection;
use super::super::errors::CallError;
use super::super::link::Script;
use super::super::login::{Dialled, Session};
use super::super::store_time::StoreTime;
use super::*;

/// What the server says of itself, but for the name of its process.
const INFO: &str = "redis_mode:standalone\r\nrole:master\r\nmaxmemory:0\r\n\
    maxmemory_policy:noeviction\r\n";

/// A server that answers a call with the number of its link.
#[derive(Default)]
struct Server {
    /// The process that the links lead to from now on.
    process: Mutex<String>,
    /// How many links there have been.
    links: AtomicUsize,
    /// Those from this one on end with their next call.
    ends: AtomicUsize,
    /// Those that are opened get no answer.
    hangs: AtomicBool,
}

impl Server {
    fn lead_to(&self, process: &str) {
        *self.process.lock().unwrap() = process.to_owned();
    }

    async fn answer(self: Arc<Self>, mut stream: DuplexStream, nth: usize) -> io::Result<()> {
        let process = self.process.lock().unwrap().clone();
        let mut bytes = [0; 4_096];
        loop {
            let count = stream.read(&mut bytes).await?;
            let command = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let text = format!("{INFO}{process}");
            let reply = match command.contains("INFO") {
                true => format!("${}\r\n{text}\r\n", text.len()),
                false if count == 0 || nth >= self.ends.load(Ordering::SeqCst) => return Ok(()),
                // A replica has what comes over the first link, not what comes over the second.
                false if command.contains("WAIT") => format!(":{nth}\r\n:{}\r\n", 2 - nth),
                false => format!(":{nth}\r\n"),
            };
            stream.write_all(reply.as_bytes()).await?;
        }
    }
}

struct Way(Arc<Server>);

impl Dial for Way {
    #[expect(clippy::disallowed_methods, reason = "they end with the runtime of the test")]
    fn dial<'d>(&'d self, _: &'d StoreLogin, _: &'d ServerAddress) -> Dialled<'d> {
        Box::pin(async {
            let (stream, far) = tokio::io::duplex(4_096);
            let nth = self.0.links.fetch_add(1, Ordering::SeqCst) + 1;
            if self.0.hangs.load(Ordering::SeqCst) {
                return std::future::pending().await;
            }
            tokio::spawn(self.0.clone().answer(far, nth));
            Session::over(stream, &StoreLogin::default()).await
        })
    }
}

/// A connection that one thread has opened, and another that calls.
struct Stage {
    server: Arc<Server>,
    clock: Clock,
    connection: StoreConnection,
    worker: Runtime,
    home: Runtime,
}

impl Stage {
    fn new() -> Self {
        Self::of("run_id:one\r\n", 0)
    }

    /// A server that says this of its process, and where so many replicas must have each charge.
    fn of(process: &str, replicas: u32) -> Self {
        let server = Arc::new(Server { ends: AtomicUsize::new(usize::MAX), ..Server::default() });
        server.lead_to(process);
        let clock = Clock::manual(UnixTime(1_000_000_000));
        let to = Destination {
            dial: Arc::new(Way(server.clone())),
            login: StoreLogin::default(),
            server: ServerAddress { host: "redis".to_owned(), port: 6_379 },
            acknowledge: (replicas, Duration::from_secs(1)),
            clock: clock.clone(),
        };
        let home = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let time = Arc::new(StoreTime::new(clock.now()));
        let opened = async move { StoreConnection::open(to, &Topology::Single, (7, time)).await };
        let connection = home.block_on(home.spawn(opened)).unwrap().unwrap();
        let worker = Builder::new_current_thread().enable_time().build().unwrap();
        Self { server, clock, connection, worker, home }
    }

    /// The number of the link over which a call of the worker travels.
    #[track_caller]
    fn call(&self) -> Result<i64, CallError> {
        let ran = self.worker.block_on(async {
            let call = self.connection.evaluate(&Script::new(""), &cmd("EVALSHA")).await;
            // What the call began has time to end.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            call
        });
        ran.map(|reply| match reply {
            Value::Int(nth) => nth,
            other => panic!("{other:?}"),
        })
    }

    fn miss_reply(&self, sent: Tick) {
        self.worker.block_on(async { self.connection.missed_reply(sent) });
    }

    fn links(&self) -> usize {
        self.server.links.load(Ordering::SeqCst)
    }
}

#[test]
fn a_thread_calls_over_the_first_link_until_it_has_its_own() {
    let stage = Stage::new();
    assert_eq!([stage.call(), stage.call(), stage.call()], [Ok(1), Ok(2), Ok(2)]);
    assert_eq!(stage.links(), 2);
}

#[test]
fn the_thread_that_opened_the_first_link_stays_with_it() {
    let stage = Stage::new();
    let connection = stage.connection.clone();
    let calls = async move {
        let mut replies = Vec::new();
        for _ in 0..3 {
            replies.push(connection.evaluate(&Script::new(""), &cmd("EVALSHA")).await.unwrap());
        }
        replies
    };
    let replies = stage.home.block_on(stage.home.spawn(calls)).unwrap();
    assert_eq!(replies, [Value::Int(1), Value::Int(1), Value::Int(1)]);
    assert_eq!(stage.links(), 1);
}

#[test]
fn a_link_to_another_process_is_not_used_and_opened_again_after_a_second() {
    let stage = Stage::new();
    stage.server.lead_to("run_id:two\r\n");
    assert_eq!([stage.call(), stage.call(), stage.call()], [Ok(1), Ok(1), Ok(1)]);
    assert_eq!(stage.links(), 2);
    stage.clock.advance(RETRY_AFTER - Duration::from_micros(1));
    assert_eq!((stage.call(), stage.links()), (Ok(1), 2));
    stage.clock.advance(Duration::from_micros(1));
    stage.server.lead_to("run_id:one\r\n");
    assert_eq!([stage.call(), stage.call()], [Ok(1), Ok(3)]);
}

#[test]
fn a_server_that_does_not_name_its_process_has_one_link() {
    let stage = Stage::of("", 0);
    assert_eq!([stage.call(), stage.call(), stage.call()], [Ok(1), Ok(1), Ok(1)]);
    assert_eq!(stage.links(), 1);
}

#[test]
fn an_opening_that_hangs_ends_and_another_one_begins_a_second_later() {
    let stage = Stage::new();
    stage.server.hangs.store(true, Ordering::SeqCst);
    assert_eq!((stage.call(), stage.call(), stage.links()), (Ok(1), Ok(1), 2));
    stage.server.hangs.store(false, Ordering::SeqCst);
    stage.worker.block_on(async {
        tokio::time::pause();
        tokio::time::advance(CONNECT_TIMEOUT + Duration::from_secs(1)).await;
        tokio::time::resume();
    });
    assert_eq!((stage.call(), stage.links()), (Ok(1), 2));
    stage.clock.advance(RETRY_AFTER);
    assert_eq!([stage.call(), stage.call()], [Ok(1), Ok(3)]);
}

#[test]
fn charges_over_a_thread_s_own_link_wait_for_replicas_too() {
    let stage = Stage::of("run_id:one\r\n", 1);
    assert_eq!(stage.call(), Ok(1));
    assert!(matches!(stage.call(), Err(CallError::Refused(_))), "no replica has it");
}

#[test]
fn a_lost_link_is_given_up_and_its_call_is_not_repeated() {
    let stage = Stage::new();
    assert_eq!([stage.call(), stage.call()], [Ok(1), Ok(2)]);
    stage.server.ends.store(2, Ordering::SeqCst);
    assert!(matches!(stage.call(), Err(CallError::Cut(_))));
    stage.server.ends.store(usize::MAX, Ordering::SeqCst);
    assert_eq!([stage.call(), stage.call()], [Ok(1), Ok(1)]);
    stage.clock.advance(RETRY_AFTER);
    assert_eq!([stage.call(), stage.call()], [Ok(1), Ok(3)]);
}

#[test]
fn a_link_is_given_up_that_was_silent_for_long_when_a_call_has_waited_too_long() {
    let stage = Stage::new();
    assert_eq!([stage.call(), stage.call()], [Ok(1), Ok(2)]);
    let replied = stage.clock.now().tick;
    stage.clock.advance(SILENCE_MAX - Duration::from_micros(1));
    stage.miss_reply(stage.clock.now().tick);
    stage.clock.advance(Duration::from_micros(1));
    stage.miss_reply(replied);
    assert_eq!(stage.call(), Ok(2), "it stood still for a moment, and has replied since");
    stage.clock.advance(SILENCE_MAX);
    stage.miss_reply(stage.clock.now().tick);
    assert_eq!(stage.call(), Ok(1));
}

#[test]
fn an_idle_link_is_opened_anew() {
    let stage = Stage::new();
    assert_eq!([stage.call(), stage.call()], [Ok(1), Ok(2)]);
    for _ in 0..3 {
        stage.clock.advance(IDLE_MAX - Duration::from_micros(1));
        assert_eq!(stage.call(), Ok(2));
    }
    stage.clock.advance(IDLE_MAX);
    assert_eq!([stage.call(), stage.call()], [Ok(1), Ok(3)]);
}
