//! Measures how long ordinary requests wait while thousands of slow clients send a byte a
//! second.
//!
//! A round has three turns: no slow clients; slow clients at another gateway, which costs the
//! machine as much; slow clients at the measured gateway. Half of the clients send a request head,
//! half a TLS handshake. A client whose connection the gateway closes at the deadline connects
//! again. The first connections are spread over one deadline, so that they do not expire together.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::Duration;

use weir_benches::flags::{Flags, sibling};
use weir_benches::lab::Folder;
use weir_benches::report::{Series, quantile, table};
use weir_benches::secure::Pair;
use weir_benches::steady::{self, Pace};
use weir_benches::targets::{Limits, Plane, Target, upstream, weir_with};
use weir_common::rlimit;

const USAGE: &str = "usage: drip [--gateway PATH] [--rounds 7] [--seconds 5] [--rate 2000] \
    [--connections 64] [--drippers 5000]";

/// The beginning of a request head, and of a TLS record of 512 bytes with a `ClientHello`.
const HEAD: &[u8] = b"GET /";
const HANDSHAKE: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 252];

/// The interval between two bytes of a client; the clients are spread over it.
const DRIP_EVERY: Duration = Duration::from_secs(1);
/// The clients send in this many groups, one group at a time.
const GROUPS: usize = 100;
/// The default deadline of a head and of a handshake; clients connect evenly over this time.
const DEADLINE: Duration = Duration::from_secs(10);

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let gateway: PathBuf = flags.value("--gateway", sibling("weir-gateway"));
    let rounds: usize = flags.value("--rounds", 7);
    let drippers: usize = flags.value("--drippers", 5_000);
    let pace = Pace {
        seconds: flags.value("--seconds", 5),
        rate: flags.value("--rate", 2_000),
        connections: flags.value("--connections", 64),
    };
    let [] = flags.rest();
    let _ = rlimit::raise_descriptors(drippers as u64 * 2 + 1_024);
    let folders = ["measured", "other"].map(Folder::new);
    let [first, _] = &folders;
    let up = upstream(first);
    let [(measured, near), (_other, far)] =
        folders.each_ref().map(|folder| start(folder, &gateway, &up));
    let places = [None, Some(far), Some(near)];
    let mut records: [[Series; 2]; 3] = Default::default();
    let mut most = [0; 3];
    for round in 0..=rounds {
        for step in 0..places.len() {
            let turn = (round + step) % places.len();
            let (Some(place), Some(record), Some(most)) =
                (places.get(turn), records.get_mut(turn), most.get_mut(turn))
            else {
                continue;
            };
            let dripping = place.map(|addresses| Dripping::start(addresses, drippers));
            let latencies = steady::run(&measured.aim, 200, pace).all;
            *most = dripping.map_or(0, |dripping| dripping.open()).max(*most);
            // The first round is for warming up.
            if round > 0 {
                for (series, share) in record.iter_mut().zip([0.5, 0.99]) {
                    series.0.push(quantile(&latencies, share) as f64);
                }
            }
        }
        eprintln!("round {round} of {rounds}");
    }
    let names = ["no slow clients", "slow clients at another", "slow clients at the measured one"];
    let [[_, quiet], [_, elsewhere], _] = &records;
    let rows: Vec<Vec<String>> = names
        .iter()
        .zip(&records)
        .zip(most)
        .map(|((name, [p50, p99]), most)| {
            let ratio = |to: &Series| format!("{:.2}", p99.ratio_to(to));
            let row = [name.to_string(), most.to_string(), p50.range(0), p99.range(0)];
            row.into_iter().chain([ratio(quiet), ratio(elsewhere)]).collect()
        })
        .collect();
    let head = ["", "open", "p50 µs", "p99 µs", "× none", "× another"];
    println!("{}", table(&format!("At {} requests a second", pace.rate), &head, &rows));
    println!("resident: {:.0} MiB", measured.process.resident_mib());
}

/// A gateway, with its plain and its TLS address.
fn start(folder: &Folder, gateway: &std::path::Path, up: &Target) -> (Target, [SocketAddr; 2]) {
    let more = format!(
        "connections_per_address_max = 1_000_000\n{}",
        Pair::new(folder).https("127.0.0.1:0")
    );
    let row = (Plane::Control, Limits::Admit, false);
    let mut target = weir_with(folder, gateway, up.aim.address, row, &more);
    let addresses = [target.aim.address, target.https()];
    (target, addresses)
}

/// Slow clients, which send until this is dropped.
struct Dripping {
    ends: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Dripping {
    /// Connects all clients, evenly over one deadline, and then starts sending their bytes.
    fn start([http, https]: [SocketAddr; 2], drippers: usize) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let open = Arc::new(AtomicUsize::new(0));
        let mut sockets: Vec<_> = (0..drippers)
            .map(|nth| if nth % 2 == 0 { (http, HEAD) } else { (https, HANDSHAKE) })
            .map(|(address, beginning)| (address, beginning, None))
            .collect();
        for group in 0..GROUPS {
            for (address, beginning, socket) in sockets.iter_mut().skip(group).step_by(GROUPS) {
                *socket = connect(*address, beginning);
            }
            std::thread::sleep(DEADLINE / GROUPS as u32);
        }
        let (ended, counted) = (ends.clone(), Arc::clone(&open));
        let thread = Builder::new().name("drippers".to_owned()).spawn(move || {
            for group in (0..GROUPS).cycle() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                for (address, beginning, socket) in sockets.iter_mut().skip(group).step_by(GROUPS) {
                    let drips = socket.as_mut().is_some_and(|s| s.write_all(b"3").is_ok());
                    if !drips {
                        *socket = connect(*address, beginning);
                    }
                }
                let is_open = |(_, _, socket): &&(_, _, Option<TcpStream>)| socket.is_some();
                counted.store(sockets.iter().filter(is_open).count(), Ordering::Relaxed);
                std::thread::sleep(DRIP_EVERY / GROUPS as u32);
            }
        });
        Self { ends, open, thread: thread.ok() }
    }

    /// The number of open connections.
    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for Dripping {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn connect(address: SocketAddr, beginning: &[u8]) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(address).ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.write_all(beginning).ok()?;
    Some(socket)
}
