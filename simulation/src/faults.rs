//! A disk that fails at times.

use std::time::Duration;

use rusqlite::Connection;

use crate::process::Process;

/// The state of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Well,
    /// Nothing can be written.
    Broken,
    /// There is no room for more.
    Full,
    /// Another process has locked the file: neither the writer's work nor the worker's reads can
    /// be done.
    Locked,
}

impl Disk {
    /// Sets the state of a process's disk. Returns what holds the lock, for `Locked`.
    pub(crate) fn set(self, process: &Process) -> Option<Connection> {
        let conn = process.conn();
        conn.busy_timeout(Duration::from_secs(u64::from(self != Self::Locked))).unwrap();
        conn.pragma_update(None, "query_only", self == Self::Broken).unwrap();
        let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let most = if self == Self::Full { pages } else { 1 << 30 };
        conn.pragma_update_and_check(None, "max_page_count", most, |_| Ok(())).unwrap();
        process.set_unreadable(self == Self::Locked);
        (self == Self::Locked).then(|| {
            let other = Connection::open(conn.path().unwrap()).unwrap();
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            other
        })
    }
}
