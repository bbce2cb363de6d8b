//! Measures the latency of events during large maintenance jobs. Events are posted one at a time;
//! the thread that writes them also runs the job.
//!
//! States that take days to arise are written into the database while no process has it open.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use weir_benches::dispatched::Dispatcher;
use weir_benches::flags::fail;
use weir_benches::lab::Folder;
use weir_benches::post::{Aim, Line, seconds};
use weir_benches::report::{quantile, table};

use crate::Lab;
use crate::calls::{LARGE, LARGEST, call, id_in};

/// The longest time that a job is observed.
const LOOK_MAX: Duration = Duration::from_secs(120);

/// The duration of the comparison without a job.
const NOTHING: Duration = Duration::from_secs(5);

/// The interval between checks whether the job has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Ended deliveries that retention deletes.
const ENDED: i64 = 300_000;

/// A maintenance job.
struct Work {
    name: &'static str,
    /// The SQL that prepares the database.
    before: String,
    /// The call that starts the job; empty if the dispatcher starts it by itself.
    method: &'static str,
    path: String,
    body: String,
    /// The query that finds a row until the job has ended.
    open: String,
}

impl Lab {
    pub(crate) fn upkeep(&self, folder: &Folder, dispatcher: Dispatcher) {
        let listed =
            call(dispatcher.api, &dispatcher.aim.token, "GET", &format!("{LARGE}/webhooks"), "");
        let webhook = id_in(&listed);
        let mut rows = vec![self.measure_events("nothing", &dispatcher, 0.0, || false)];
        drop(dispatcher);
        for work in works(&webhook) {
            change(folder, &work.before);
            let dispatcher = self.still(folder);
            let began = self.clock.now().tick;
            if !work.method.is_empty() {
                let token = &dispatcher.aim.token;
                let _ = call(dispatcher.api, token, work.method, &work.path, &work.body);
            }
            let called = seconds(self.clock.now().tick.since(began)) * 1_000.0;
            let over = || !finds(folder, &work.open);
            rows.push(self.measure_events(work.name, &dispatcher, called, over));
        }
        let head = ["during", "call ms", "over after s", "events", "p50 ms", "p99 ms", "max ms"];
        println!("{}", table("Events during large pieces of work", &head, &rows));
    }

    /// Posts events one after another until `over` returns true.
    fn measure_events(
        &self,
        name: &str,
        dispatcher: &Dispatcher,
        called: f64,
        over: impl Fn() -> bool,
    ) -> Vec<String> {
        let began = self.clock.now().tick;
        let most = if name == "nothing" { NOTHING } else { LOOK_MAX };
        let (stop, took) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let kinds = vec![("ws_beside".to_owned(), "plan.changed")];
                let aim = Aim { kinds, ..dispatcher.aim.clone() };
                let mut line = Line::connect(&aim);
                let mut all = Vec::new();
                for nth in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let due = self.clock.now().tick;
                    line.post(&aim, nth, 1, due);
                    all.push(self.clock.now().tick.since(due).as_micros() as u64);
                    std::thread::sleep(Duration::from_millis(1));
                }
                all.sort_unstable();
                took.lock().map(|mut took| *took = all).unwrap_or_default();
            });
            while !over() && self.clock.now().tick.since(began) < most {
                std::thread::sleep(LOOK_EVERY);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let lasted = self.clock.now().tick.since(began);
        let took = took.into_inner().unwrap_or_default();
        let ms = |micros: u64| format!("{:.1}", micros as f64 / 1_000.0);
        let over = if lasted >= most {
            format!("> {:.0}", seconds(most))
        } else {
            format!("{:.1}", seconds(lasted))
        };
        vec![
            name.to_owned(),
            format!("{called:.1}"),
            over,
            took.len().to_string(),
            ms(quantile(&took, 0.5)),
            ms(quantile(&took, 0.99)),
            ms(quantile(&took, 1.0)),
        ]
    }
}

fn works(webhook: &str) -> Vec<Work> {
    let waiting = format!("webhook = {LARGEST} AND state = 0");
    let hook = format!("{LARGE}/webhooks/{webhook}");
    vec![
        Work {
            name: "a reactivation, all of a webhook's were tried",
            before: format!(
                "UPDATE deliveries SET step = 1, due = due + 360000000000 WHERE {waiting}; \
                 UPDATE webhooks SET paused_at = created_at WHERE id = {LARGEST};"
            ),
            method: "POST",
            path: format!("{hook}:reactivate"),
            body: String::new(),
            open: format!("SELECT 1 FROM webhooks WHERE id = {LARGEST} AND reordering = 1"),
        },
        Work {
            name: "a redelivery by filter, of all of a webhook's",
            before: format!(
                "UPDATE counters SET waiting = waiting - (SELECT count(*) FROM deliveries WHERE \
                 {waiting}); \
                 UPDATE deliveries SET state = 2, ended_at = created_at WHERE {waiting};"
            ),
            method: "POST",
            path: format!("{LARGE}/deliveries:redeliver"),
            body: format!("{{\"webhook\":\"{webhook}\"}}"),
            open: "SELECT 1 FROM jobs WHERE ended_at IS NULL".to_owned(),
        },
        Work {
            name: "retention, of 300,000 deliveries",
            before: format!(
                "UPDATE deliveries SET state = 1, ended_at = 1 WHERE id <= {ENDED}; \
                 UPDATE counters SET waiting = waiting - {ENDED};"
            ),
            method: "",
            path: String::new(),
            body: String::new(),
            open: "SELECT 1 FROM deliveries WHERE state = 1 AND coalesce(over_at, ended_at) < 2"
                .to_owned(),
        },
        Work {
            name: "the end of a webhook that a tenth of all waits for",
            before: String::new(),
            method: "DELETE",
            path: hook,
            body: String::new(),
            open: "SELECT 1 FROM webhooks WHERE deleted_up_to IS NOT NULL".to_owned(),
        },
    ]
}

pub(crate) fn change(folder: &Folder, sql: &str) {
    let conn = Connection::open(folder.path("dispatcher.db"));
    let done = conn.and_then(|conn| conn.execute_batch(sql));
    done.unwrap_or_else(|error| fail(&format!("{sql}: {error}")));
}

fn finds(folder: &Folder, sql: &str) -> bool {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(folder.path("dispatcher.db"), flags);
    let found = conn.and_then(|conn| conn.prepare(sql)?.exists([]));
    found.unwrap_or_else(|error| fail(&format!("{sql}: {error}")))
}
