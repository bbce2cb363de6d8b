//! Counts one request, event, delivery or decision.
//!
//! A process is warmed up before it is counted, and counts are means of many equal pieces of work.
//!
//! Not here: which programs and settings are counted (`main`, `check`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use weir_benches::arrivals::Arrivals;
use weir_benches::dispatched::Dispatcher;
use weir_benches::flags::fail;
use weir_benches::lab::{Folder, Process};
use weir_benches::post::{Aim, Line};
use weir_benches::secure::{self, Version};
use weir_benches::targets::Target;
use weir_common::time::Clock;

use crate::callgrind::{begin, counted, reset, whole};

/// Connections that requests are sent on, in turn.
pub(crate) const CONNECTIONS: usize = 16;
const WARM_UP: usize = 20;
/// Endpoints that deliveries go to in turn, so that none reaches its rate limit. Few: their states
/// are counted every five seconds, of which a count takes more or fewer on other machines.
const ENDPOINTS: usize = 10;
/// Deliveries before the count, beyond the first one of each endpoint.
const WARM_DELIVERIES: u64 = 20;
/// Requests that `decide --counted` decides.
const DECISIONS: u64 = 10_000;
/// The longest time of a delivery under callgrind.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval between looks into the dispatcher's database.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Counts a request: `together` of the connections send one, then all of these are read, then the
/// next ones send; `turns` times.
pub(crate) fn request(target: &Target, turns: usize, together: usize) -> u64 {
    let aim = &target.aim;
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", aim.path, aim.host);
    let connect = |_| {
        let stream = TcpStream::connect(aim.address).and_then(|stream| {
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        stream.unwrap_or_else(|error| fail(&format!("{}: {error}", target.name)))
    };
    let mut streams = [(); CONNECTIONS].map(connect);
    let mut turn = |together: usize| -> Vec<String> {
        let groups = streams.chunks_mut(together);
        groups.flat_map(|group| exchange(target, group, request.as_bytes())).collect()
    };
    // A refusing limit admits the first request.
    let _ = turn(CONNECTIONS);
    for _ in 0..WARM_UP {
        check(target, &turn(together));
    }
    begin(&target.process);
    check(target, &turn(together));
    reset(&target.process);
    for _ in 0..turns {
        check(target, &turn(together));
    }
    counted(&target.process, 1) / (turns * CONNECTIONS) as u64
}

/// Counts a request over TLS.
pub(crate) fn request_tls(target: &Target, version: Version, requests: usize) -> u64 {
    secure::load(&target.aim, version, requests / 10);
    begin(&target.process);
    let counts = [(1, requests / 2), (2, requests / 2 + requests)].map(|(nth, requests)| {
        reset(&target.process);
        secure::load(&target.aim, version, requests);
        counted(&target.process, nth)
    });
    let [few, many] = counts;
    many.saturating_sub(few) / requests as u64
}

/// Counts a delivery, from the post to the record of its attempt. Each event is posted after the
/// previous one's attempt is on disk, so that no commit is of two of them.
pub(crate) fn delivery(folder: &Folder, program: &Path, deliveries: u64) -> (Process, u64) {
    let own = [one_thread(), deadline()];
    let (mut lab, clock) = (Deliveries::start(folder, program, &own), Clock::system());
    lab.deliver(ENDPOINTS as u64, &clock);
    begin(&lab.dispatcher.process);
    lab.deliver(WARM_DELIVERIES, &clock);
    lab.wait_for_checkpoint(&clock);
    reset(&lab.dispatcher.process);
    lab.deliver(deliveries, &clock);
    let counted = counted(&lab.dispatcher.process, 1) / deliveries;
    (lab.dispatcher.process, counted)
}

/// Counts an event, from the post to the response. Its delivery is stored and waits: each endpoint
/// admits one attempt an hour, and has had it.
pub(crate) fn event(folder: &Folder, program: &Path, events: u64) -> (Process, u64) {
    let own = [
        one_thread(),
        deadline(),
        ("requests = 100 ", "requests = 1 ".to_owned()),
        ("window = \"1m\"", "window = \"1h\"".to_owned()),
    ];
    let (mut lab, clock) = (Deliveries::start(folder, program, &own), Clock::system());
    lab.deliver(ENDPOINTS as u64, &clock);
    begin(&lab.dispatcher.process);
    lab.post(WARM_DELIVERIES, &clock);
    lab.wait_for_checkpoint(&clock);
    reset(&lab.dispatcher.process);
    lab.post(events, &clock);
    let counted = counted(&lab.dispatcher.process, 1) / events;
    if lab.recorded() != ENDPOINTS as u64 {
        fail("an event was delivered that should wait");
    }
    (lab.dispatcher.process, counted)
}

/// Counts a decision of the in-memory store: a run that decides every request twice less one that
/// decides it once.
pub(crate) fn decision(folder: &Folder, decide: &Path) -> u64 {
    let run = |times: &str| whole(folder, decide, &["--counted", times]);
    run("2").saturating_sub(run("1")) / DECISIONS
}

/// As many threads on every machine.
fn one_thread() -> (&'static str, String) {
    ("threads = 0 ", "threads = 1 ".to_owned())
}

/// A deadline that an attempt under callgrind meets.
fn deadline() -> (&'static str, String) {
    ("deadline = \"10s\"", format!("deadline = \"{}s\"", PATIENCE.as_secs()))
}

/// A dispatcher, its receivers, and a connection to it.
struct Deliveries {
    dispatcher: Dispatcher,
    aim: Aim,
    line: Line,
    records: Connection,
    wal: PathBuf,
    posted: u64,
}

impl Deliveries {
    fn start(folder: &Folder, program: &Path, own: &[(&str, String)]) -> Self {
        let arrivals = Arrivals::receive(1, &Clock::system());
        let mut dispatcher = Dispatcher::start_with(folder, program, own);
        let to = arrivals.addresses.first().unwrap_or_else(|| fail("no port"));
        let urls: Vec<String> = (0..ENDPOINTS).map(|nth| format!("http://{to}/r/{nth}")).collect();
        dispatcher.register("h", &urls);
        let aim = dispatcher.one_each("h");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let records = Connection::open_with_flags(folder.path("dispatcher.db"), flags);
        let records = records.unwrap_or_else(|error| fail(&format!("the database: {error}")));
        let (line, wal) = (Line::connect(&aim), folder.path("dispatcher.db-wal"));
        Self { dispatcher, line, aim, records, wal, posted: 0 }
    }

    /// Posts `count` events, one after another.
    fn post(&mut self, count: u64, clock: &Clock) {
        for _ in 0..count {
            self.line.post(&self.aim, self.posted, 1, clock.now().tick);
            self.posted += 1;
        }
    }

    /// Posts `count` events, each after the attempt of the previous one is on disk.
    fn deliver(&mut self, count: u64, clock: &Clock) {
        for _ in 0..count {
            self.post(1, clock);
            wait_until(clock, "a delivery was not recorded", || self.recorded() >= self.posted);
        }
    }

    /// Waits until the WAL is empty, as it is after a second without work. The longer it is, the
    /// more SQLite searches in its index for each page that it writes.
    fn wait_for_checkpoint(&self, clock: &Clock) {
        let empty = || self.wal.metadata().is_ok_and(|wal| wal.len() == 0);
        wait_until(clock, "the WAL was not checkpointed", empty);
    }

    /// Attempts on disk. The dispatcher's own gauges would count as its work.
    fn recorded(&self) -> u64 {
        let last = "SELECT coalesce(max(id), 0) FROM attempts";
        let last = self.records.query_row(last, [], |row| row.get::<_, i64>(0));
        last.unwrap_or_else(|error| fail(&format!("the attempts: {error}"))).cast_unsigned()
    }
}

/// Waits until it is `done`, or fails with this message.
fn wait_until(clock: &Clock, otherwise: &str, done: impl Fn() -> bool) {
    let began = clock.now().tick;
    while !done() {
        if clock.now().tick.since(began) > PATIENCE {
            fail(otherwise);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Sends one request on each connection; returns the responses' status lines.
fn exchange(target: &Target, streams: &mut [TcpStream], request: &[u8]) -> Vec<String> {
    for stream in &mut *streams {
        if let Err(error) = stream.write_all(request) {
            fail(&format!("{}: {error}", target.name));
        }
    }
    streams.iter_mut().map(|stream| answer(target, stream)).collect()
}

fn answer(target: &Target, stream: &mut TcpStream) -> String {
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(length) if length > 0 => {
                seen += &String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
            }
            other => fail(&format!("{} closed after:\n{seen}{other:?}", target.name)),
        }
        let Some((head, body)) = seen.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        if body.len() >= length {
            return head.lines().next().unwrap_or_default().to_owned();
        }
    }
}

fn check(target: &Target, answers: &[String]) {
    let wanted = format!(" {} ", target.limits.status());
    if let Some(other) = answers.iter().find(|line| !line.contains(&wanted)) {
        fail(&format!("{} should have answered{wanted}but: {other}", target.name));
    }
}
