//! Records which statements SQLite runs, and what each costs.
//!
//! Covers stores that are opened with the hook of a [`Watch`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use rusqlite::trace::{TraceEvent, TraceEventCodes};
use rusqlite::{Connection, StatementStatus};

use crate::store::sqlite::pragmas::ConnectionHook;

/// The recorded statements, by their SQL.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<Mutex<BTreeMap<String, Seen>>>);

/// The cost of a statement, over all its runs.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) runs: u64,
    /// Steps of SQLite's virtual machine: an index lookup is one, however many rows there are.
    pub(super) steps: i64,
    /// Rows read in scans of whole tables.
    pub(super) scanned: i64,
}

impl Watch {
    /// Records the statements of each connection of a store that is opened with it.
    pub(super) fn hook(&self) -> ConnectionHook {
        let watch = self.clone();
        Arc::new(move |conn: &mut Connection| watch.look_on(conn))
    }

    /// The statements since the last call.
    pub(super) fn drain(&self) -> BTreeMap<String, Seen> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn look_on(&self, conn: &mut Connection) -> rusqlite::Result<()> {
        let watch = self.clone();
        // The counters of a cached statement continue, so earlier values are subtracted.
        let mut before: HashMap<String, (i64, i64)> = HashMap::new();
        let count = move |event: TraceEvent<'_>| {
            let TraceEvent::Profile(query, _) = event else { return };
            let sql = query.sql().into_owned();
            let count = |status| i64::from(query.get_status(status));
            let now = (count(StatementStatus::VmStep), count(StatementStatus::FullscanStep));
            let last = before.insert(sql.clone(), now).unwrap_or_default();
            let last = if last.0 > now.0 { (0, 0) } else { last };
            let mut all = watch.0.lock().unwrap();
            let seen = all.entry(sql).or_default();
            seen.runs += 1;
            seen.steps += now.0 - last.0;
            seen.scanned += now.1 - last.1;
        };
        conn.trace_v2(TraceEventCodes::SQLITE_TRACE_PROFILE, Some(count))
    }
}
