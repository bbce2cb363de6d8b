//! Looks on while SQLite works: which statements it runs, and how much it does for each.
//!
//! Whoever wants to know wears a [`Watch`] on the threads that open connections; what is opened
//! by others is not looked at.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use rusqlite::trace::{TraceEvent, TraceEventCodes};
use rusqlite::{Connection, StatementStatus};

thread_local! {
    static WORN: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

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
    /// Puts it on: what this thread opens from now on is looked at.
    pub(super) fn wear(&self) {
        WORN.set(Some(self.clone()));
    }

    /// A runtime whose threads all wear it, for readers.
    pub(super) fn runtime(&self) -> tokio::runtime::Runtime {
        let worn = self.clone();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.on_thread_start(move || worn.wear()).enable_all().build().unwrap()
    }

    /// All that was seen since the last call.
    pub(super) fn take(&self) -> BTreeMap<String, Seen> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A connection that is looked at, if this thread wears a watch.
pub(in crate::store::sqlite) fn looked_on(mut conn: Connection) -> rusqlite::Result<Connection> {
    look_on(&mut conn)?;
    Ok(conn)
}

/// Looks at a connection, if this thread wears a watch.
pub(in crate::store::sqlite) fn look_on(conn: &mut Connection) -> rusqlite::Result<()> {
    let Some(watch) = WORN.with_borrow(Clone::clone) else { return Ok(()) };
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
