//! Measures weir-dispatcher with millions of deliveries waiting: how long a start takes, how much
//! memory it needs, how fast customers' and operators' calls are answered, how large the file
//! is, and whether a backlog drains at exactly its pace.
//!
//! The pile is made by the program itself: every endpoint may be called once in an hour, so that
//! all but one of its deliveries wait. The database lies in the folder for temporary files.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_benches::arrivals::Arrivals;
use weir_benches::dispatched::{Dispatcher, PER_WORKSPACE};
use weir_benches::flags::{Flags, fail, sibling};
use weir_benches::lab::{Folder, ask};
use weir_benches::post::{Load, connect, exchange, flood, seconds};
use weir_benches::report::{Series, table};
use weir_common::time::Clock;

const USAGE: &str = "usage: pile [--dispatcher PATH] [--webhooks 100000] [--deliveries 10000000] \
    [--backlog 1000000] [--starts 3] [--only pile|drain]";

/// Nothing but the first delivery of each endpoint is sent.
const STILL: &str = "requests = 1                    # attempts";

/// How the settings that ship say how fast an endpoint may be called.
const SHIPPED_REQUESTS: &str = "requests = 100                  # attempts";
const SHIPPED_WINDOW: &str = "window = \"1m\"                   # …";

/// The pace of the drain: 4,000 a second.
const DRAIN: (u64, Duration) = (400, Duration::from_millis(100));

/// After a start has settled: figures are taken every five seconds.
const SETTLED: Duration = Duration::from_secs(12);

/// Calls of each kind.
const CALLS: usize = 50;

/// How long nothing may arrive while a backlog drains.
const PATIENCE: Duration = Duration::from_secs(30);

struct Plan {
    dispatcher: PathBuf,
    webhooks: usize,
    deliveries: u64,
    backlog: u64,
    starts: usize,
    only: String,
}

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let plan = Plan {
        dispatcher: flags.value("--dispatcher", sibling("weir-dispatcher")),
        webhooks: flags.value("--webhooks", 100_000),
        deliveries: flags.value("--deliveries", 10_000_000),
        backlog: flags.value("--backlog", 1_000_000),
        starts: flags.value("--starts", 3),
        only: flags.value("--only", String::new()),
    };
    let [] = flags.rest();
    let clock = Clock::system();
    let arrivals = Arrivals::receive(16, &clock);
    let lab = Lab { plan, clock, arrivals };
    if lab.plan.only != "drain" {
        lab.pile();
    }
    if lab.plan.only != "pile" {
        lab.drain();
    }
}

struct Lab {
    plan: Plan,
    clock: Clock,
    arrivals: Arc<Arrivals>,
}

impl Lab {
    /// Starts a dispatcher whose endpoints may be called once in an hour.
    fn still(&self, folder: &Folder) -> Dispatcher {
        let own = [
            (SHIPPED_REQUESTS, STILL.to_owned()),
            (SHIPPED_WINDOW, "window = \"1h\" #".to_owned()),
            ("attempts = \"stdout\"", "attempts = \"off\"".to_owned()),
        ];
        Dispatcher::start_with(folder, &self.plan.dispatcher, &own)
    }

    fn pile(&self) {
        let folder = Folder::new("pile");
        let mut dispatcher = self.still(&folder);
        dispatcher.register("p", &urls(&self.arrivals.addresses, self.plan.webhooks));
        let began = self.clock.now().tick;
        let events = self.plan.deliveries / PER_WORKSPACE as u64;
        let aim = dispatcher.all_of_each("p");
        let _ = flood(&aim, Load { events, per_call: 1_000, connections: 4 }, &self.clock);
        let took = seconds(self.clock.now().tick.since(began));
        let (bytes, log) = sizes(&folder);
        let made = vec![vec![
            format!("{} waiting for {} webhooks", self.plan.deliveries, self.plan.webhooks),
            format!("{:.0}", self.plan.deliveries as f64 / took),
            format!("{bytes:.0}"),
            format!("{log:.0}"),
            format!("{:.0}", dispatcher.process.resident_mib()),
        ]];
        let head = ["", "made/s", "file MiB", "log MiB", "resident MiB"];
        println!("{}", table("A pile", &head, &made));
        let mut starts = [Series::default(), Series::default(), Series::default()];
        let mut calls = Vec::new();
        for _ in 0..self.plan.starts {
            drop(dispatcher);
            let began = self.clock.now().tick;
            dispatcher = self.still(&folder);
            self.ready(&dispatcher);
            let ready = seconds(self.clock.now().tick.since(began));
            let at_once = dispatcher.process.resident_mib();
            std::thread::sleep(SETTLED);
            let settled = dispatcher.process.resident_mib();
            for (series, value) in starts.iter_mut().zip([ready, at_once, settled]) {
                series.0.push(value);
            }
            calls = self.calls(&dispatcher);
        }
        let row = starts.iter().map(|series| series.range(2));
        let row = vec![std::iter::once("after kill -9".to_owned()).chain(row).collect()];
        let head = ["", "start to ready s", "resident MiB then", "resident MiB settled"];
        println!("{}", table("A start with the pile", &head, &row));
        println!("{}", table("Calls beside the pile", &["", "p50 ms", "max ms"], &calls));
        println!("Waiting by the metric: {}", dispatcher.metric("deliveries_waiting"));
    }

    fn ready(&self, dispatcher: &Dispatcher) {
        while !ask(dispatcher.admin, "weir", "/readyz").starts_with("HTTP/1.1 200") {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What customers and operators call, and how long that takes.
    fn calls(&self, dispatcher: &Dispatcher) -> Vec<Vec<String>> {
        let list = "/v1/workspaces/ws_p0/deliveries";
        let first = self.call(dispatcher.api, &dispatcher.aim.token, list);
        let id = first.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let one = format!("{list}/{}", id.unwrap_or_else(|| fail(&format!("no id in {first}"))));
        let failed = format!("{list}?state=failed_permanent");
        let waiting = format!("{list}?state=waiting&type=plan.changed");
        let customers = ["/v1/workspaces/ws_p0/webhooks", list, &one, &failed, &waiting];
        let customers = customers.map(|path| (dispatcher.api, path));
        let operators = ["/metrics", "/readyz"].map(|path| (dispatcher.admin, path));
        let timed = |(address, path): (SocketAddr, &str)| {
            let mut took = Series::default();
            for _ in 0..CALLS {
                let began = self.clock.now().tick;
                let _ = self.call(address, &dispatcher.aim.token, path);
                took.0.push(seconds(self.clock.now().tick.since(began)) * 1_000.0);
            }
            let max = took.0.iter().copied().fold(0.0, f64::max);
            let shown = path.split("dlv_").next().unwrap_or(path);
            vec![format!("`GET {shown}`"), format!("{:.2}", took.median()), format!("{max:.2}")]
        };
        customers.into_iter().chain(operators).map(timed).collect()
    }

    fn call(&self, address: SocketAddr, token: &str, path: &str) -> String {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer {token}\r\n\r\n");
        let answer = exchange(&mut connect(address), request.as_bytes(), &mut Vec::new());
        if !answer.starts_with("HTTP/1.1 200 ") {
            fail(&format!("{path} is answered by\n{answer}"));
        }
        answer
    }

    /// One endpoint's backlog, drained.
    fn drain(&self) {
        let folder = Folder::new("drain");
        let mut dispatcher = self.still(&folder);
        dispatcher.register("d", &urls(&self.arrivals.addresses, 1));
        let aim = dispatcher.all_of_each("d");
        let events = self.plan.backlog;
        let _ = flood(&aim, Load { events, per_call: 1_000, connections: 4 }, &self.clock);
        drop(dispatcher);
        let (requests, window) = DRAIN;
        let own = [
            (SHIPPED_REQUESTS, format!("requests = {requests} #")),
            (SHIPPED_WINDOW, format!("window = \"{}ms\" #", window.as_millis())),
            ("attempts = \"stdout\"", "attempts = \"off\"".to_owned()),
        ];
        let before = self.arrivals.count();
        let dispatcher = Dispatcher::start_with(&folder, &self.plan.dispatcher, &own);
        self.ready(&dispatcher);
        let began = self.clock.now().tick;
        self.arrivals.wait_for(self.plan.backlog, PATIENCE);
        let took = self.arrivals.last().since(began);
        let count = self.arrivals.count() - before;
        let least = window.mul_f64(count.div_ceil(requests).saturating_sub(1) as f64);
        let row = vec![
            format!("{count} at {requests} in {window:?}"),
            format!("{:.1}", seconds(took)),
            format!("{:.1}", seconds(least)),
            format!("{:.3}", seconds(took) / seconds(least)),
            format!("{:.0}", dispatcher.process.resident_mib()),
        ];
        let head = ["", "took s", "the pace allows s", "ratio", "resident MiB"];
        println!("{}", table("A backlog of one endpoint", &head, &[row]));
    }
}

/// The sizes of the database and of its log of changes, in MiB.
fn sizes(folder: &Folder) -> (f64, f64) {
    let mib = |name: &str| {
        let size = folder.path(name).metadata().map_or(0, |file| file.len());
        size as f64 / f64::from(1 << 20)
    };
    (mib("dispatcher.db"), mib("dispatcher.db-wal"))
}

/// A URL for each endpoint, on these ports in turn.
fn urls(ports: &[SocketAddr], count: usize) -> Vec<String> {
    let ports = (0..count).zip(ports.iter().cycle());
    ports.map(|(nth, at)| format!("http://{at}/r/{nth}")).collect()
}
