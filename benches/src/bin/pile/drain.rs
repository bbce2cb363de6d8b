//! Drains one endpoint's backlog: how long it takes compared with the minimum that the rate limit
//! allows, and the most starts in any window.

use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use weir_benches::flags::fail;
use weir_benches::lab::Folder;
use weir_benches::post::{Load, flood, seconds};
use weir_benches::report::table;
use weir_common::time::micros;

use crate::{Lab, urls};

/// The rate limit: 4,000 attempts a second.
const REQUESTS: u64 = 4_000;
const WINDOW: Duration = Duration::from_secs(1);

/// Tolerance in microseconds: the dispatcher records a start by one clock and limits by another,
/// each truncated to a microsecond.
const CLOCKS: u64 = 10;

/// The longest wait without an arrival while the backlog drains.
const PATIENCE: Duration = Duration::from_secs(30);

/// The wait after the last arrival until its outcome is on disk.
const RECORDED: Duration = Duration::from_secs(3);

impl Lab {
    pub(crate) fn drain(&self) {
        let folder = Folder::new("drain");
        let mut dispatcher = self.still(&folder);
        dispatcher.register("d", &urls(&self.arrivals.addresses, 1));
        let aim = dispatcher.all_of_each("d");
        let (events, earlier) = (self.plan.backlog, self.arrivals.count());
        let _ = flood(&aim, Load { events, per_call: 1_000, connections: 4 }, &self.clock);
        drop(dispatcher);
        let before = self.arrivals.count();
        let dispatcher = self.paced(&folder, REQUESTS, WINDOW);
        self.arrivals.wait_for(earlier + events, PATIENCE);
        let count = self.arrivals.count() - before;
        std::thread::sleep(RECORDED);
        let resident = dispatcher.process.resident_most_mib();
        drop(dispatcher);
        // The first attempt was made before the restart, under the other rate limit.
        let starts: Vec<u64> = starts(&folder).split_off(1);
        let took = starts.last().zip(starts.first()).map_or(0, |(last, first)| last - first);
        let took = Duration::from_micros(took);
        let least =
            WINDOW * u32::try_from((starts.len() as u64).div_ceil(REQUESTS) - 1).unwrap_or(0);
        let (most, fewest) = windows(&starts);
        let row = vec![
            format!("{count} at {REQUESTS} in {WINDOW:?}"),
            format!("{:.2}", seconds(took)),
            format!("{:.2}", seconds(least)),
            format!("{:.4}", seconds(took) / seconds(least)),
            most.to_string(),
            format!("{:.3}", seconds(shortest(&starts)) * 1_000.0),
            fewest.to_string(),
            format!("{resident:.0}"),
        ];
        let head = [
            "",
            "first to last start s",
            "the pace allows s",
            "ratio",
            "starts in the fullest window",
            "4,001 took at least ms",
            "in the emptiest",
            "resident MiB at most",
        ];
        println!("{}", table("A backlog of one endpoint", &head, &[row]));
    }
}

/// The recorded start of each attempt, in microseconds.
fn starts(folder: &Folder) -> Vec<u64> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let read = || -> rusqlite::Result<Vec<i64>> {
        let conn = Connection::open_with_flags(folder.path("dispatcher.db"), flags)?;
        let mut query = conn.prepare("SELECT started_at FROM attempts ORDER BY started_at")?;
        query.query_map([], |row| row.get(0))?.collect()
    };
    let all = read().unwrap_or_else(|error| fail(&format!("attempts: {error}")));
    all.into_iter().map(i64::cast_unsigned).collect()
}

/// The shortest time in which [`REQUESTS`] + 1 attempts started.
fn shortest(starts: &[u64]) -> Duration {
    let later = starts.iter().skip(REQUESTS as usize);
    let took = later.zip(starts).map(|(end, begin)| end - begin).min();
    Duration::from_micros(took.unwrap_or_default())
}

/// The most starts in any window, and the fewest in any window that begins with a start and ends
/// before the last one.
fn windows(starts: &[u64]) -> (usize, usize) {
    let window = micros(WINDOW).saturating_sub(CLOCKS);
    let (mut most, mut fewest, mut end) = (0, usize::MAX, 0);
    for (nth, start) in starts.iter().enumerate() {
        while starts.get(end).is_some_and(|other| *other < start + window) {
            end += 1;
        }
        most = most.max(end - nth);
        if end < starts.len() {
            fewest = fewest.min(end - nth);
        }
    }
    (most, fewest)
}
