//! Measures how many events one commit stores and how long a post then waits, by the number of
//! connections that post one event a call.

use std::time::Duration;

use weir_benches::lab::Folder;
use weir_benches::post::press;
use weir_benches::report::{Series, sorted, table};
use weir_common::time::micros;

use super::{Lab, PATIENCE, record};

const CONNECTIONS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// How long each number of connections is measured.
const LASTING: Duration = Duration::from_secs(3);

/// The measurements with one number of connections, one value per round.
#[derive(Clone, Default)]
struct Shown {
    accepted: Series,
    commits: Series,
    answers: [Series; 3],
    arrivals: [Series; 3],
}

impl Lab {
    /// Measures the curve of each program, in every round.
    pub(super) fn curve(&self) {
        let programs = self.plan.programs();
        let mut shown = vec![vec![Shown::default(); CONNECTIONS.len()]; programs.len()];
        for round in 0..self.plan.rounds {
            for ((_, program), shown) in programs.iter().zip(&mut shown) {
                let folder = Folder::new("curve");
                let mut dispatcher = self.start(&folder, program, "10s");
                self.warm(&mut dispatcher, self.plan.endpoints);
                let aim = dispatcher.one_each("h");
                for (connections, shown) in CONNECTIONS.iter().zip(shown) {
                    let before = self.arrivals.count();
                    let commits = dispatcher.metric("store_commits");
                    let answers = press(&aim, *connections, LASTING, &self.clock);
                    self.arrivals.wait_for(before + answers.len() as u64, PATIENCE);
                    self.settle(&dispatcher);
                    let commits = dispatcher.metric("store_commits") - commits;
                    let seconds = LASTING.as_secs_f64();
                    shown.accepted.0.push(answers.len() as f64 / seconds);
                    shown.commits.0.push(commits / seconds);
                    let took = answers.iter().map(|one| micros(one.at.since(one.due)));
                    record(&mut shown.answers, &sorted(took));
                    record(&mut shown.arrivals, &self.arrivals.drain_latencies());
                }
            }
            eprintln!("curve: round {} of {}", round + 1, self.plan.rounds);
        }
        let mut rows = Vec::new();
        for ((name, _), shown) in programs.iter().zip(&shown) {
            for (connections, shown) in CONNECTIONS.iter().zip(shown) {
                let mut row = vec![format!("{name}{connections}")];
                row.push(shown.accepted.range(0));
                row.push(shown.commits.range(0));
                for [p50, p99, _] in [&shown.answers, &shown.arrivals] {
                    row.extend([p50, p99].map(|series| series.range(2)));
                }
                rows.push(row);
            }
        }
        let head = [
            "connections",
            "events accepted/s",
            "commits/s",
            "202: p50 ms",
            "p99 ms",
            "arrival: p50 ms",
            "p99 ms",
        ];
        println!("{}", table("Commits by connections, one event a call", &head, &rows));
    }
}
