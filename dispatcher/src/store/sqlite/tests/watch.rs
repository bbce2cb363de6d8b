//! Looks on while SQLite works: which statements it runs, and how much it does for each.
//!
//! A store is opened with the hook of a [`Watch`]; what is opened without is not watched.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use rusqlite::trace::{TraceEvent, TraceEventCodes};
use rusqlite::{Connection, StatementStatus};

use crate::store::sqlite::pragmas::ConnectionHook;

/// What was seen.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<Mutex<BTreeMap<String, Seen>>>);

/// What a statement cost, over all its runs.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) runs: u64,
    /// Steps of SQLite's machine: to find a row by an index is one, however many there are.
    pub(super) steps: i64,
    /// Rows passed while a table was gone through from end to end.
    pub(super) scanned: i64,
}

impl Watch {
    /// Watches each connection of a store that is opened with it.
    pub(super) fn hook(&self) -> ConnectionHook {
        let watch = self.clone();
        Arc::new(move |conn: &mut Connection| watch.look_on(conn))
    }

    /// All that was seen since the last call.
    pub(super) fn drain(&self) -> BTreeMap<String, Seen> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn look_on(&self, conn: &mut Connection) -> rusqlite::Result<()> {
        let watch = self.clone();
        // A statement that is kept for the next time goes on counting.
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
