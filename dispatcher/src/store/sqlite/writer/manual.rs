//! The writer without its thread: a test says when it works, and looks at what it has written.
//!
//! What runs is the thread's own code, batch by batch; only who calls it is another.

use std::fs::File;

use rusqlite::Connection;

use crate::store::sqlite::writer::{Desk, Thread, WAITING_MAX, Writer};

/// What the thread would run.
pub(crate) struct ByHand {
    thread: Option<Thread>,
    /// Held until the connection is closed.
    _lock: File,
}

impl ByHand {
    /// Does what has been asked, as one batch; says whether anything was.
    pub(crate) fn work(&mut self) -> bool {
        let Some(thread) = &mut self.thread else { return false };
        let worked = thread.work_once();
        let Some(answer) = thread.ending.take() else { return worked };
        self.thread.take().expect("it was there").end(answer);
        true
    }

    /// The connection that writes; none once the store was closed.
    pub(crate) fn conn(&self) -> Option<&Connection> {
        self.thread.as_ref().map(|thread| &thread.desk.conn)
    }
}

impl Writer {
    /// One that works when it is told to.
    pub(in crate::store::sqlite) fn by_hand(desk: Desk, lock: File) -> (Self, ByHand) {
        let (writer, thread) = Self::over(desk);
        (writer, ByHand { thread: Some(thread), _lock: lock })
    }

    /// Leaves no room, as if so much waited; gives how much there was.
    pub(in crate::store::sqlite) fn take_all_room(&self) -> usize {
        self.room.forget_permits(WAITING_MAX)
    }

    pub(in crate::store::sqlite) fn room_left(&self) -> usize {
        self.room.available_permits()
    }

    pub(in crate::store::sqlite) fn give_back_room(&self, room: usize) {
        self.room.add_permits(room);
    }
}
