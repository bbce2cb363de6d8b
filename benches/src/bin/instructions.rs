//! Counts user instructions per request of each target, and per delivery, with callgrind.
//!
//! A count depends on the program and the requests, and hardly on the machine's other work: two
//! runs differ by a few in ten thousand. It includes neither the kernel nor caches.
//!
//! Sixteen connections take turns: all send, then all are read. Instructions spent on opening
//! and warming up are discarded. Over TLS `h2load` sends the load twice, the second time with
//! more requests: the difference excludes the cost of the connections.
//!
//! Deliveries are counted one after another, from the post to the record, without shared commits:
//! under load commits are shared, and a delivery costs less.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use weir_benches::arrivals::Arrivals;
use weir_benches::dispatched::Dispatcher;
use weir_benches::flags::{Flags, fail, sibling};
use weir_benches::lab::{Folder, Process};
use weir_benches::post::Line;
use weir_benches::report::table;
use weir_benches::secure::{self, Pair, Version};
use weir_benches::targets::{Limits, Plane, Target, bare, haproxy, nginx, upstream, weir};
use weir_common::time::Clock;

const USAGE: &str = "usage: instructions [--gateway PATH] [--dispatcher PATH] [--requests 3200] \
    [--deliveries 400] [--only TEXT] [--by plain|tls|delivery] [--keep FILE]";
const CONNECTIONS: usize = 16;
const WARM_UP: usize = 20;
/// Endpoints that deliveries go to in turn, so that none reaches its rate limit.
const ENDPOINTS: usize = 100;
/// The longest time of a delivery under callgrind.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let gateway: PathBuf = flags.value("--gateway", sibling("weir-gateway"));
    let dispatcher: PathBuf = flags.value("--dispatcher", sibling("weir-dispatcher"));
    let requests = flags.value("--requests", 3_200);
    let deliveries = flags.value("--deliveries", 400);
    let only = flags.value("--only", String::new());
    let by = flags.value("--by", String::new());
    let keep = flags.value("--keep", String::new());
    let [] = flags.rest();
    let (plain, counting) = (Folder::new("upstream"), Folder::counting("counted"));
    let up = upstream(&plain);
    let pair = Pair::new(&plain);
    let mut rows = Vec::new();
    let mut row = |name: String, process: &Process, counted: u64, dump: u32| {
        if !keep.is_empty() {
            copy(&process.counts(dump), &keep);
        }
        eprintln!("{name}: {counted}");
        rows.push(vec![name, counted.to_string()]);
    };
    let wants = |part: &str| by.is_empty() || by == part;
    let makers = if wants("plain") { makers(&counting, &gateway, &up) } else { Vec::new() };
    for make in makers {
        let target = make();
        if target.name.contains(&only) {
            let counted = count(&target, requests / CONNECTIONS);
            row(target.name.clone(), &target.process, counted, 1);
        }
    }
    let makers =
        if wants("tls") { makers_tls(&counting, &gateway, &up, &pair) } else { Vec::new() };
    for (name, make) in makers {
        for version in [Version::One, Version::Two] {
            let name = format!("{name}, {}", version.name());
            if name.contains(&only) {
                let target = make();
                let counted = count_tls(&target, version, requests);
                row(name, &target.process, counted, 2);
            }
        }
    }
    let name = "weir-dispatcher, a delivery";
    if wants("delivery") && name.contains(&only) {
        let (process, counted) = count_deliveries(&counting, &dispatcher, deliveries);
        row(name.to_owned(), &process, counted, 1);
    }
    println!("{}", table("User instructions per request", &["", "instructions"], &rows));
}

type Maker<'a> = Box<dyn Fn() -> Target + 'a>;

/// Every target; each is started only when it is measured, because valgrind is slow.
fn makers<'a>(folder: &'a Folder, gateway: &'a Path, up: &'a Target) -> Vec<Maker<'a>> {
    let up = up.aim.address;
    let mut all: Vec<Maker<'a>> = Vec::new();
    for limits in [Limits::None, Limits::Admit, Limits::Refuse] {
        all.push(Box::new(move || nginx(folder, up, limits, false)));
        all.push(Box::new(move || haproxy(folder, up, limits)));
    }
    for mimalloc in [false, true] {
        for limits in [Limits::None, Limits::Refuse] {
            all.push(Box::new(move || bare(folder, up, limits, mimalloc)));
        }
    }
    for row in [
        (Plane::Control, Limits::Admit, false),
        (Plane::Data, Limits::Admit, false),
        (Plane::Control, Limits::Admit, true),
        (Plane::Control, Limits::Refuse, false),
        (Plane::Control, Limits::Refuse, true),
    ] {
        all.push(Box::new(move || weir(folder, gateway, up, row)));
    }
    all
}

/// The targets over TLS, with their names.
fn makers_tls<'a>(
    folder: &'a Folder,
    gateway: &'a Path,
    up: &'a Target,
    pair: &'a Pair,
) -> Vec<(&'static str, Maker<'a>)> {
    vec![
        ("nginx", Box::new(move || secure::nginx(folder, &up.aim, pair))),
        ("HAProxy", Box::new(move || secure::haproxy(folder, &up.aim, pair))),
        ("bare pingora, mimalloc", Box::new(move || secure::bare(folder, &up.aim, pair))),
        ("weir", Box::new(move || secure::weir(folder, gateway, &up.aim, pair))),
    ]
}

fn count_tls(target: &Target, version: Version, requests: usize) -> u64 {
    secure::load(&target.aim, version, requests / 10);
    control(&target.process, "--instr=on");
    let counts = [(1, requests / 2), (2, requests / 2 + requests)].map(|(dump, requests)| {
        control(&target.process, "--zero");
        secure::load(&target.aim, version, requests);
        control(&target.process, "--dump");
        counted(&target.process, dump)
    });
    let [few, many] = counts;
    many.saturating_sub(few) / requests as u64
}

fn count(target: &Target, turns: usize) -> u64 {
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
    // A refusing limit admits the first request.
    let _ = exchange(target, &mut streams, request.as_bytes());
    for _ in 0..WARM_UP {
        check(target, &exchange(target, &mut streams, request.as_bytes()));
    }
    control(&target.process, "--instr=on");
    check(target, &exchange(target, &mut streams, request.as_bytes()));
    control(&target.process, "--zero");
    for _ in 0..turns {
        check(target, &exchange(target, &mut streams, request.as_bytes()));
    }
    control(&target.process, "--dump");
    counted(&target.process, 1) / (turns * CONNECTIONS) as u64
}

/// Posts each event, for one endpoint, after the previous one arrived.
fn count_deliveries(folder: &Folder, program: &Path, deliveries: u64) -> (Process, u64) {
    let clock = Clock::system();
    let arrivals = Arrivals::receive(1, &clock);
    let deadline = ("deadline = \"10s\"", format!("deadline = \"{}s\"", PATIENCE.as_secs()));
    let mut dispatcher = Dispatcher::start_with(folder, program, &[deadline]);
    let to = arrivals.addresses.first().unwrap_or_else(|| fail("no port"));
    let urls: Vec<String> = (0..ENDPOINTS).map(|nth| format!("http://{to}/r/{nth}")).collect();
    dispatcher.register("h", &urls);
    let aim = dispatcher.one_each("h");
    let mut line = Line::connect(&aim);
    let mut deliver = |from: u64, count: u64| {
        for nth in from..from + count {
            line.post(&aim, nth, 1, clock.now().tick);
            arrivals.wait_for(nth + 1, PATIENCE);
        }
        // The gauge shows committed state: at 0, the result of the last attempt is on disk.
        while dispatcher.metric("deliveries_waiting") > 0.0 {
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    deliver(0, ENDPOINTS as u64);
    control(&dispatcher.process, "--instr=on");
    deliver(ENDPOINTS as u64, 20);
    control(&dispatcher.process, "--zero");
    deliver(ENDPOINTS as u64 + 20, deliveries);
    control(&dispatcher.process, "--dump");
    let counted = counted(&dispatcher.process, 1) / deliveries;
    (dispatcher.process, counted)
}

/// The number of instructions in the `nth` dump.
fn counted(process: &Process, nth: u32) -> u64 {
    let counts = std::fs::read_to_string(process.counts(nth)).unwrap_or_default();
    let total = counts.lines().find_map(|line| line.strip_prefix("summary: "));
    total
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or_else(|| fail("callgrind counted nothing"))
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

fn control(process: &Process, what: &str) {
    let id = process.id().to_string();
    match Command::new("callgrind_control").args([what, &id]).output() {
        Ok(output) if output.status.success() => {}
        other => {
            fail(&format!("callgrind_control {what}: {other:?} (Debian: apt install valgrind)"))
        }
    }
}

fn copy(counts: &Path, to: &str) {
    if let Err(error) = std::fs::copy(counts, to) {
        fail(&format!("{to}: {error}"));
    }
}
