//! Measures weir-dispatcher with millions of waiting deliveries: the time and memory of a start,
//! the response times of customers' and operators' calls (`calls`) and of pages (`pages`), and the
//! latency of events during large maintenance jobs (`upkeep`); whether a backlog drains at exactly
//! the rate limit (`drain`); and the size of the database after days of traffic (`churn`).
//!
//! The deliveries are created by posting events: a rate limit of one attempt an hour keeps all but
//! one delivery of each endpoint waiting. The database is in the folder for temporary files.

mod calls;
mod churn;
mod drain;
mod pages;
mod upkeep;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_benches::arrivals::Arrivals;
use weir_benches::dispatched::{ADMIN_HOST, Dispatcher, PER_WORKSPACE};
use weir_benches::flags::{Flags, sibling};
use weir_benches::lab::{Folder, get};
use weir_benches::post::{Load, flood, seconds};
use weir_benches::report::{Series, table};
use weir_common::time::Clock;

const USAGE: &str = "usage: pile [--dispatcher PATH] [--webhooks 100000] [--deliveries 10000000] \
    [--backlog 1000000] [--starts 3] [--days 30] [--only pile|drain|churn]";

/// The rate limit in the shipped settings.
const SHIPPED_REQUESTS: &str = "requests = 100                  #";
const SHIPPED_WINDOW: &str = "window = \"1m\"                   # …";

/// The wait after a start until memory usage is stable.
const SETTLED: Duration = Duration::from_secs(12);

/// Calls are measured with a hundredth of the deliveries too.
const SMALL: u64 = 100;

/// A tenth of the deliveries belongs to one webhook.
const FOR_ONE: u64 = 10;

struct Plan {
    dispatcher: PathBuf,
    webhooks: usize,
    deliveries: u64,
    backlog: u64,
    starts: usize,
    days: u32,
}

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let plan = Plan {
        dispatcher: flags.value("--dispatcher", sibling("weir-dispatcher")),
        webhooks: flags.value("--webhooks", 100_000),
        deliveries: flags.value("--deliveries", 10_000_000),
        backlog: flags.value("--backlog", 1_000_000),
        starts: flags.value("--starts", 3),
        days: flags.value("--days", 30),
    };
    let only = flags.value("--only", String::new());
    let [] = flags.rest();
    let clock = Clock::system();
    let arrivals = Arrivals::receive(16, &clock);
    let lab = Lab { plan, clock, arrivals };
    let wanted = |part| only.is_empty() || only == part;
    if wanted("pile") {
        lab.pile();
    }
    if wanted("drain") {
        lab.drain();
    }
    if wanted("churn") {
        churn::run(lab.plan.days);
    }
}

struct Lab {
    plan: Plan,
    clock: Clock,
    arrivals: Arc<Arrivals>,
}

impl Lab {
    /// Starts a dispatcher with this rate limit per endpoint, and waits until it is ready.
    fn paced(&self, folder: &Folder, requests: u64, window: Duration) -> Dispatcher {
        let own = [
            (SHIPPED_REQUESTS, format!("requests = {requests} #")),
            (SHIPPED_WINDOW, format!("window = \"{}ms\" #", window.as_millis())),
            ("attempts = \"stdout\"", "attempts = \"off\"".to_owned()),
        ];
        let dispatcher = Dispatcher::start_with(folder, &self.plan.dispatcher, &own);
        while !get(dispatcher.admin, ADMIN_HOST, "/readyz").starts_with("HTTP/1.1 200") {
            std::thread::sleep(Duration::from_millis(5));
        }
        dispatcher
    }

    /// Starts a dispatcher with a rate limit of one attempt an hour.
    fn still(&self, folder: &Folder) -> Dispatcher {
        self.paced(folder, 1, Duration::from_secs(3_600))
    }

    fn pile(&self) {
        let folder = Folder::new("pile");
        let mut dispatcher = self.still(&folder);
        dispatcher.register("p", &urls(&self.arrivals.addresses, self.plan.webhooks));
        dispatcher.register("b", &urls(&self.arrivals.addresses, 1));
        let small = self.plan.deliveries / SMALL;
        self.grow(&dispatcher, small);
        let few = self.calls(&dispatcher);
        let began = self.clock.now().tick;
        self.grow(&dispatcher, self.plan.deliveries - small);
        let took = seconds(self.clock.now().tick.since(began));
        let many = self.calls(&dispatcher);
        let (bytes, log) = sizes(&folder);
        let made = vec![vec![
            format!("{} waiting for {} webhooks", self.plan.deliveries, self.plan.webhooks),
            format!("{:.0}", (self.plan.deliveries - small) as f64 / took),
            format!("{bytes:.0}"),
            format!("{log:.0}"),
            format!("{:.0}", dispatcher.process.resident_mib()),
            format!("{:.0}", dispatcher.process.resident_most_mib()),
        ]];
        let head = ["", "made/s", "file MiB", "log MiB", "resident MiB", "at most"];
        println!("{}", table("A pile", &head, &made));
        let rows = calls::beside(&few, &many);
        let head = ["", "p50 ms", "max ms", "p50 with a hundredth", "ratio"];
        println!("{}", table("Calls with the pile", &head, &rows));
        dispatcher = self.starts(&folder, dispatcher);
        println!("Waiting by the metric: {}", dispatcher.metric("deliveries_waiting"));
        let dispatcher = self.pages(&folder, dispatcher);
        self.upkeep(&folder, dispatcher);
    }

    /// Posts events for `deliveries` more deliveries.
    fn grow(&self, dispatcher: &Dispatcher, deliveries: u64) {
        let for_one = deliveries / FOR_ONE;
        for (prefix, events) in
            [("p", (deliveries - for_one) / PER_WORKSPACE as u64), ("b", for_one)]
        {
            let load = Load { events, per_call: 1_000, connections: 4 };
            let _ = flood(&dispatcher.all_of_each(prefix), load, &self.clock);
        }
    }

    /// Kills and restarts the dispatcher `--starts` times.
    fn starts(&self, folder: &Folder, mut dispatcher: Dispatcher) -> Dispatcher {
        let mut starts = [const { Series(Vec::new()) }; 4];
        for _ in 0..self.plan.starts {
            drop(dispatcher);
            let began = self.clock.now().tick;
            dispatcher = self.still(folder);
            let ready = seconds(self.clock.now().tick.since(began));
            let at_once = dispatcher.process.resident_mib();
            std::thread::sleep(SETTLED);
            let settled = dispatcher.process.resident_mib();
            let most = dispatcher.process.resident_most_mib();
            for (series, value) in starts.iter_mut().zip([ready, at_once, settled, most]) {
                series.0.push(value);
            }
        }
        let row = starts.iter().map(|series| series.range(2));
        let row = vec![std::iter::once("after kill -9".to_owned()).chain(row).collect()];
        let head = ["", "start to ready s", "resident MiB then", "settled", "at most"];
        println!("{}", table("A start with the pile", &head, &row));
        dispatcher
    }
}

/// The sizes of the database and of its WAL, in MiB.
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
