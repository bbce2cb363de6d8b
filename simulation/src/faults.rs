//! The disk, which fails now and then.

use std::time::Duration;

use rusqlite::Connection;

use crate::worker::simulation::world::World;

/// What keeps the disk from taking anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Well,
    /// Nothing can be written.
    Broken,
    /// There is no room for more.
    Full,
    /// Somebody else has the file: nothing that is asked of the writer can be done, nor can the
    /// worker read.
    Locked,
}

impl World {
    /// The disk fails, or recovers.
    pub(super) fn set_disk(&mut self, disk: Disk) {
        let now = self.now();
        self.books.note(now, || format!("the disk is {disk:?}"));
        let Some(process) = &self.process else { return };
        let conn = process.conn();
        self.lock = None;
        conn.busy_timeout(Duration::from_secs(u64::from(disk != Disk::Locked))).unwrap();
        conn.pragma_update(None, "query_only", disk == Disk::Broken).unwrap();
        let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let most = if disk == Disk::Full { pages } else { 1 << 30 };
        conn.pragma_update_and_check(None, "max_page_count", most, |_| Ok(())).unwrap();
        process.set_unreadable(disk == Disk::Locked);
        if disk == Disk::Locked {
            let other = Connection::open(conn.path().unwrap()).unwrap();
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            self.lock = Some(other);
        }
        self.disk = disk;
        self.books.outbox.doubt = true;
    }
}
