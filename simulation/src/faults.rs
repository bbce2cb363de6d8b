//! The disk, which fails now and then.

use std::time::Duration;

use rusqlite::Connection;

use crate::process::Process;

/// What keeps the disk from taking anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Well,
    /// Nothing can be written.
    Broken,
    /// There is no room for more.
    Full,
    /// Another process has the file: nothing that is asked of the writer can be done, nor can the
    /// worker read.
    Locked,
}

impl Disk {
    /// The disk of a process fails so, or recovers. Gives what holds the lock, where it is locked.
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
