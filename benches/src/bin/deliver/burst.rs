//! Measures the latency of an endpoint's first event: on an idle dispatcher, while another
//! workspace posts a burst of a million events, and while the burst waits for the rate limit of its
//! endpoint.

use std::thread::scope;

use weir_benches::dispatched::Dispatcher;
use weir_benches::lab::Folder;
use weir_benches::post::{Load, flood, seconds};
use weir_benches::report::{Series, table};

use super::{Lab, PARTS, latency, record, urls};

/// Events of the burst per call: the maximum (`ingest.events_max`).
const PER_CALL: u64 = 1_000;

/// Connections that the burst is posted on.
const CONNECTIONS: u64 = 4;

/// When the first events are posted.
const WHEN: [&str; 3] = ["idle", "while the burst is posted", "while the burst waits"];

impl Lab {
    /// Measures first events before, during and after a burst, in every round.
    pub(super) fn burst(&self) {
        let programs = self.plan.programs();
        let mut shown = vec![[const { [const { Series(Vec::new()) }; 3] }; 3]; programs.len()];
        let mut parts = shown.clone();
        let mut rates = vec![Series::default(); programs.len()];
        for round in 0..self.plan.rounds {
            let each = programs.iter().zip(&mut shown).zip(&mut parts).zip(&mut rates);
            for ((((_, program), shown), parts), rates) in each {
                let folder = Folder::new("burst");
                let mut dispatcher = self.start(&folder, program, "10s");
                dispatcher.register("c", &urls(&self.arrivals.addresses, "x", 1));
                for nth in 0..WHEN.len() {
                    let urls = urls(&self.arrivals.addresses, &format!("r/{nth}"), self.plan.idle);
                    dispatcher.register(&format!("f{nth}n"), &urls);
                }
                let [idle, meanwhile, after] = shown;
                record(idle, &self.firsts(&dispatcher, "f0n", || true));
                scope(|scope| {
                    let burst = scope.spawn(|| self.send_burst(&dispatcher));
                    let coming = || !burst.is_finished();
                    let answered = self.one_by_one(&dispatcher.one_each("f1n"), coming);
                    self.record_parts(parts, &answered);
                    rates.0.push(burst.join().unwrap_or_default());
                });
                let [whole, ..] = parts;
                meanwhile.clone_from(whole);
                record(after, &self.firsts(&dispatcher, "f2n", || true));
            }
            eprintln!("burst: round {} of {}", round + 1, self.plan.rounds);
        }
        let mut rows = Vec::new();
        let mut ways = Vec::new();
        let each = programs.iter().zip(&shown).zip(&parts).zip(&rates);
        for ((((name, _), shown), parts), rates) in each {
            for (part, series) in PARTS.iter().zip(parts) {
                ways.push(latency(&format!("{name}{part}"), series));
            }
            let rate = rates.range(0);
            println!("{name}the burst was taken at {rate} events a second");
            let [[_, idle, _], ..] = shown;
            for (when, series) in WHEN.iter().zip(shown) {
                let mut row = latency(&format!("{name}{when}"), series);
                let [_, p99, _] = series;
                row.push(format!("{:.2}", p99.ratio_to(idle)));
                rows.push(row);
            }
        }
        let title = format!("A first event during {} of one workspace", self.plan.burst);
        let head = ["", "p50 ms", "p99 ms", "max ms", "p99 × idle"];
        println!("{}", table(&title, &head, &rows));
        let title = "The way of a first event while the burst is posted";
        println!("{}", table(title, &["", "p50 ms", "p99 ms", "max ms"], &ways));
    }

    /// Posts the burst; returns how many of its events were accepted a second.
    fn send_burst(&self, dispatcher: &Dispatcher) -> f64 {
        let load = Load { events: self.plan.burst, per_call: PER_CALL, connections: CONNECTIONS };
        let took = flood(&dispatcher.all_of_each("c"), load, &self.clock);
        self.plan.burst as f64 / seconds(took)
    }

    /// Posts one event to each webhook of the workspaces with `prefix`, each after the previous one
    /// arrived, while `on` is true; returns the latencies.
    fn firsts(&self, dispatcher: &Dispatcher, prefix: &str, on: impl Fn() -> bool) -> Vec<u64> {
        let _ = self.one_by_one(&dispatcher.one_each(prefix), on);
        self.arrivals.drain_latencies()
    }
}
