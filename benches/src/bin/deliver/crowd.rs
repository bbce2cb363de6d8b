//! What one workspace with a million events does to another's first: it is posted while nothing
//! else is, while the million are posted, and while they wait for the pace of their endpoint.

use std::thread::scope;

use weir_benches::dispatched::Dispatcher;
use weir_benches::lab::Folder;
use weir_benches::post::{Load, flood};
use weir_benches::report::{Series, table};

use super::{Lab, latency, record, urls};

/// Events of the crowd in a call: as many as one may hold.
const PER_CALL: u64 = 1_000;

/// Connections that the crowd comes on.
const CONNECTIONS: u64 = 4;

/// When the firsts are posted.
const WHEN: [&str; 3] = ["idle", "while the crowd is posted", "while the crowd waits"];

impl Lab {
    /// First events beside a crowd, round after round.
    pub(super) fn crowd(&self) {
        let programs = self.plan.programs();
        let mut shown = vec![[const { [const { Series(Vec::new()) }; 3] }; 3]; programs.len()];
        for round in 0..self.plan.rounds {
            for ((_, program), shown) in programs.iter().zip(&mut shown) {
                let folder = Folder::new("crowd");
                let mut dispatcher = self.start(&folder, program, "10s");
                dispatcher.register("c", &urls(&self.arrivals.addresses, "x", 1));
                for nth in 0..WHEN.len() {
                    let urls = urls(&self.arrivals.addresses, &format!("r/{nth}"), self.plan.idle);
                    dispatcher.register(&format!("f{nth}n"), &urls);
                }
                let [idle, meanwhile, after] = shown;
                record(idle, &self.firsts(&dispatcher, "f0n", || true));
                scope(|scope| {
                    let crowd = scope.spawn(|| self.come(&dispatcher));
                    let coming = || !crowd.is_finished();
                    record(meanwhile, &self.firsts(&dispatcher, "f1n", coming));
                });
                record(after, &self.firsts(&dispatcher, "f2n", || true));
            }
            eprintln!("crowd: round {} of {}", round + 1, self.plan.rounds);
        }
        let mut rows = Vec::new();
        for ((name, _), shown) in programs.iter().zip(&shown) {
            let [[_, idle, _], ..] = shown;
            for (when, series) in WHEN.iter().zip(shown) {
                let mut row = latency(&format!("{name}{when}"), series);
                let [_, p99, _] = series;
                row.push(format!("{:.2}", p99.ratio_to(idle)));
                rows.push(row);
            }
        }
        let title = format!("A first event beside {} of one workspace", self.plan.crowd);
        let head = ["", "p50 ms", "p99 ms", "max ms", "p99 × idle"];
        println!("{}", table(&title, &head, &rows));
    }

    fn come(&self, dispatcher: &Dispatcher) {
        let load = Load { events: self.plan.crowd, per_call: PER_CALL, connections: CONNECTIONS };
        let _ = flood(&dispatcher.all_of_each("c"), load, &self.clock);
    }

    /// Posts one event to each webhook of the workspaces with `prefix`, one after another has
    /// arrived, for as long as `on` says.
    fn firsts(&self, dispatcher: &Dispatcher, prefix: &str, on: impl Fn() -> bool) -> Vec<u64> {
        let _ = self.one_by_one(&dispatcher.one_each(prefix), on);
        self.arrivals.take_latencies()
    }
}
