//! Checkpoints the WAL into the database while the writer continues.
//!
//! SQLite would checkpoint within a commit, and delay all callers in its batch by dozens of
//! milliseconds. Here another connection copies the pages, some at a time, and its thread waits
//! until they are on disk: SQLite waits for that only where it has copied all, which is with the
//! writer. Once the WAL has its length, the writer copies the last few, and the WAL restarts.
//!
//! # Invariants
//!
//! 1. The WAL grows past twice its length only while readers block checkpoints: if copying cannot
//!    keep up, the writer waits for it.
//! 2. A checkpoint that fails loses nothing: pages that were not copied stay in the WAL. If copied
//!    ones could not be synced, the process aborts before the WAL can restart over them: the next
//!    start copies all again.
//!
//! Not here: the checkpoint of an idle writer (`writer`), a WAL that grows anyway (`limit`).

use std::error::Error;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use log::Level;
use rusqlite::Connection;
use rusqlite::ffi::SQLITE_IOERR_FSYNC;
use weir_common::log::events;

use crate::store::sqlite::pragmas::BUSY_TIMEOUT;
use crate::store::sqlite::wal::reader_gate::ReaderGate;

/// The thread copies after this many commits. While the pages are synced, commits wait for the
/// disk: of 32 small ones about a millisecond, of a whole WAL 17. Of large ones, few wait.
const COPY_COMMITS: u32 = 32;

/// Pages that may be left for the writer to copy: a few milliseconds of work.
const REST_PAGES: u64 = 256;

/// Passes of the thread, at most: each copies the pages that were written during the one before, if
/// they are more than [`REST_PAGES`].
const PASSES_MAX: usize = 4;

/// The end of a checkpoint that a reader blocks is retried this many pages later, then after twice
/// as many, up to a whole length: our reads last milliseconds, a backup minutes.
const AGAIN_PAGES: u64 = 256;

/// The longest wait for our readers, where they block the rest of a checkpoint.
const READERS_WAIT_MAX: Duration = Duration::from_millis(5);

/// The length of the WAL, and the state of its checkpoint.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    /// Pages in the WAL after the last commit.
    pages: Arc<AtomicU64>,
    /// Pages after which the WAL restarts, if no reader blocks that.
    length: u64,
    /// The length, in pages, at which the writer copies the rest.
    finish: u64,
    /// Commits since the thread was done.
    commits: u32,
    /// Pages until the retry, if a reader blocks the end of a checkpoint.
    again: u64,
    /// Pages in the WAL when it was last looked at.
    earlier: u64,
    /// The longest wait for our readers.
    wait_max: Duration,
    under_way: bool,
    requests: Option<SyncSender<()>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// What to do after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// Let the thread copy pages.
    Copy,
    /// If the thread is done, let it copy again later.
    Continue,
    /// If the thread is done, copy the rest.
    Finish,
    /// Wait for the thread, then copy the rest.
    WaitAndFinish,
}

fn due(pages: u64, commits: u32, finish: u64, length: u64, under_way: bool) -> Due {
    match under_way {
        // The WAL grew by a whole length meanwhile: the thread cannot keep up.
        true if pages >= finish + length => Due::WaitAndFinish,
        true if pages >= finish => Due::Finish,
        true => Due::Continue,
        false if commits >= COPY_COMMITS || pages >= finish => Due::Copy,
        false => Due::Nothing,
    }
}

impl Checkpointer {
    /// For the database in this file, which `writer` writes; the WAL restarts at `length` pages.
    pub(crate) fn beside(
        path: &Path,
        database: Arc<File>,
        writer: &mut Connection,
        length: u32,
    ) -> io::Result<Self> {
        let pages = Arc::new(AtomicU64::new(0));
        let (requests, inbox) = sync_channel(1);
        let (finished, done) = sync_channel(1);
        let path = path.to_path_buf();
        let thread = std::thread::Builder::new().name("store-checkpointer".to_owned());
        let (seen, written) = (Arc::clone(&pages), Arc::clone(&pages));
        let copier = move || {
            run((&path, &database), || written.load(Ordering::Relaxed), &inbox, &finished);
        };
        let thread = thread.spawn(copier)?;
        // Replaces SQLite's automatic checkpoints.
        let hook = move |_: &mut rusqlite::hooks::Wal, count: std::ffi::c_int| {
            seen.store(u64::try_from(count).unwrap_or_default(), Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(hook)).map_err(io::Error::other)?;
        let (requests, thread) = (Some(requests), Some(thread));
        let length = length.into();
        Ok(Self {
            pages,
            length,
            finish: length,
            commits: 0,
            again: AGAIN_PAGES,
            earlier: 0,
            wait_max: READERS_WAIT_MAX,
            under_way: false,
            requests,
            done,
            thread,
        })
    }

    /// Called after each commit of the `writer`, outside of a transaction; our readers pass `gate`.
    pub(crate) fn committed(&mut self, writer: &Connection, gate: &ReaderGate) {
        let pages = self.pages.load(Ordering::Relaxed);
        let earlier = std::mem::replace(&mut self.earlier, pages);
        self.commits += u32::from(pages != earlier);
        if pages < earlier {
            // The WAL has restarted, whatever copied it.
            (self.finish, self.again) = (self.length, AGAIN_PAGES);
        }
        match due(pages, self.commits, self.finish, self.length, self.under_way) {
            Due::Nothing => {}
            Due::Copy => {
                let sent = self.requests.as_ref().map(|requests| requests.try_send(()));
                self.under_way = sent.is_some_and(|sent| sent.is_ok());
                if !self.under_way {
                    // The thread has ended, which it does not by itself.
                    self.finish(writer, gate);
                }
            }
            Due::Continue | Due::Finish if self.done.try_recv() == Err(TryRecvError::Empty) => {}
            Due::Continue => (self.under_way, self.commits) = (false, 0),
            Due::Finish => self.finish(writer, gate),
            Due::WaitAndFinish => {
                self.wait();
                self.finish(writer, gate);
            }
        }
    }

    /// Waits until the thread copies nothing.
    pub(crate) fn wait(&mut self) {
        if std::mem::take(&mut self.under_way) {
            self.commits = 0;
            // An error means that the thread has ended.
            let _ = self.done.recv();
        }
    }

    fn finish(&mut self, writer: &Connection, gate: &ReaderGate) {
        (self.under_way, self.commits) = (false, 0);
        let pages = self.pages.load(Ordering::Relaxed);
        // The WAL restarts with the first write that finds all copied and no reader in the WAL:
        // reads that begin after the last page was copied do not read it.
        let left = copy(writer).and_then(|left| {
            gate.while_empty(self.wait_max, || copy(writer)).unwrap_or(Some(left.max(1)))
        });
        if left == Some(0) {
            self.pages.store(0, Ordering::Relaxed);
        }
        (self.finish, self.again) = match left {
            Some(0) => (self.length, AGAIN_PAGES),
            // A reader blocks the rest: the WAL continues to grow.
            Some(_) => ((pages + self.again).max(self.length), (self.again * 2).min(self.length)),
            None => (pages + self.length, AGAIN_PAGES),
        };
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        // Ends the thread, so that its connection closes before the writer's.
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    (path, database): (&Path, &File),
    written: impl Fn() -> u64,
    inbox: &Receiver<()>,
    finished: &SyncSender<()>,
) {
    let mut conn = None;
    while inbox.recv().is_ok() {
        if conn.is_none() {
            conn = open(path).inspect_err(log_failure).ok();
        }
        if let Some(conn) = &conn {
            let copied = passes(&written, || copy(conn), || database.sync_data());
            copied.unwrap_or_else(|error| abort(&error));
        }
        if finished.send(()).is_err() {
            return;
        }
    }
}

/// Copies pages and syncs them, and again those that were `written` meanwhile, unless they are few.
fn passes(
    mut written: impl FnMut() -> u64,
    mut copy: impl FnMut() -> Option<u64>,
    mut sync: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    for _ in 0..PASSES_MAX {
        let before = written();
        if copy().is_none() {
            break;
        }
        sync()?;
        if written() <= before + REST_PAGES {
            break;
        }
    }
    Ok(())
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // Copied pages are on disk before the WAL restarts.
    conn.pragma_update(None, "synchronous", "FULL")?;
    Ok(conn)
}

/// Copies the pages in the WAL, as far as readers allow; returns how many are left, or `None` if it
/// failed or another process checkpoints.
fn copy(conn: &Connection) -> Option<u64> {
    let sql = "PRAGMA wal_checkpoint(PASSIVE)";
    let copied = conn.query_row(sql, [], |row| {
        let [busy, log, copied]: [i64; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
        Ok((busy == 0).then(|| u64::try_from(log - copied).unwrap_or_default()))
    });
    copied.unwrap_or_else(|error| {
        log_failure(&error);
        None
    })
}

/// Logs that a checkpoint failed.
///
/// Aborts the process if a sync failed: the kernel counts pages as written that it could not write,
/// and reports that once, so that a later sync would succeed and the WAL restart over the only copy
/// of them. <https://www.usenix.org/conference/atc20/presentation/rebello>
pub(crate) fn log_failure(error: &rusqlite::Error) {
    if error.sqlite_error().is_some_and(|error| error.extended_code == SQLITE_IOERR_FSYNC) {
        abort(error);
    }
    let cause = error.to_string();
    events::event(Level::Warn, "checkpoint failed", &[("cause", cause.into())]);
}

fn abort(error: &dyn Error) -> ! {
    let cause = format!(
        "{error}: what a checkpoint synced may not be on disk. The WAL has it, and the next start \
         copies it again, unless a backup still has the database open: end that first. Check the \
         disk"
    );
    events::event(Level::Error, "store cannot sync", &[("cause", cause.into())]);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::store::sqlite::pragmas::prepare;
    use crate::store::sqlite::tests::Folder;
    use crate::store::sqlite::wal::limit;
    use crate::store::sqlite::wal::reader_gate::tests::wait_until_shut;

    const LENGTH: u32 = 300;

    #[test]
    fn the_thread_copies_at_intervals_and_the_writer_ends_at_the_length_and_waits_at_twice_that() {
        for (pages, commits, under_way, expected) in [
            (19, COPY_COMMITS - 1, false, Due::Nothing),
            (9, COPY_COMMITS, false, Due::Copy),
            (20, 1, false, Due::Copy),
            (19, COPY_COMMITS, true, Due::Continue),
            (20, 1, true, Due::Finish),
            (29, 1, true, Due::Finish),
            (30, 1, true, Due::WaitAndFinish),
        ] {
            let found = due(pages, commits, 20, 10, under_way);
            assert_eq!(found, expected, "{pages}, {commits}, {under_way}");
        }
    }

    #[test]
    fn each_copy_is_synced_and_repeated_while_much_is_written_meanwhile() {
        let more = REST_PAGES + 1;
        for (written, expected) in [
            (&[0, 0][..], "cs"),
            (&[5_000, 3], "cs"),
            (&[0, REST_PAGES], "cs"),
            (&[0, more, more, 2 * more, 0, 0], "cscscs"),
            (&[0, more, 0, more, 0, more, 0, more], "cscscscs"),
        ] {
            let (steps, written) = (RefCell::new(String::new()), RefCell::new(written.iter()));
            let sync = || {
                steps.borrow_mut().push('s');
                Ok(())
            };
            let written = || written.borrow_mut().next().copied().unwrap();
            let copy = || {
                steps.borrow_mut().push('c');
                Some(0)
            };
            passes(written, copy, sync).unwrap();
            assert_eq!(steps.into_inner(), expected);
        }
        passes(|| 0, || None, || panic!("nothing was copied")).unwrap();
        let mut written = (0..).step_by(5_000);
        let failing = || Err(io::Error::other("EIO"));
        let copied = passes(|| written.next().unwrap(), || Some(0), failing);
        assert!(copied.is_err(), "a later sync could succeed without the pages");
    }

    fn writer(folder: &Folder) -> (Connection, Checkpointer) {
        let mut conn = Connection::open(folder.path("a.db")).unwrap();
        prepare(&mut conn).unwrap();
        conn.execute_batch("CREATE TABLE blobs (bytes BLOB)").unwrap();
        let path = folder.path("a.db");
        let file = Arc::new(File::open(&path).unwrap());
        let checkpoint = Checkpointer::beside(&path, file, &mut conn, LENGTH).unwrap();
        (conn, checkpoint)
    }

    /// Has a read transaction open until it is dropped.
    fn reader(folder: &Folder) -> Connection {
        let reader = Connection::open(folder.path("a.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM blobs").unwrap();
        reader
    }

    /// Writes commits of ten pages or a few more.
    fn write(conn: &Connection, checkpoint: &mut Checkpointer, commits: usize) {
        for _ in 0..commits {
            conn.execute("INSERT INTO blobs VALUES (randomblob(40000))", []).unwrap();
            checkpoint.committed(conn, &ReaderGate::default());
        }
    }

    #[test]
    fn a_wal_under_constant_writes_restarts_and_loses_nothing() {
        let folder = Folder::new();
        let (conn, mut checkpoint) = writer(&folder);
        write(&conn, &mut checkpoint, 500);
        let log = folder.path("a.db-wal").metadata().unwrap().len();
        let most = u64::from(3 * LENGTH) * 4_200;
        assert!(log < most, "the log has {log} bytes");
        let count = "SELECT count(*) FROM blobs WHERE length(bytes) = 40000";
        let found: i64 = conn.query_row(count, [], |row| row.get(0)).unwrap();
        assert_eq!(found, 500);
        assert!(folder.path("a.db").metadata().unwrap().len() > 400 * 40_000);
    }

    /// Writes more pages than a checkpoint needs, in one commit.
    fn fill(conn: &Connection) {
        conn.execute("INSERT INTO blobs VALUES (randomblob(4000 * ?))", [LENGTH + 30]).unwrap();
    }

    #[test]
    fn what_is_read_at_that_moment_is_tried_again_soon_and_then_less_often() {
        let folder = Folder::new();
        let (conn, mut checkpoint) = writer(&folder);
        let reader = reader(&folder);
        let length = u64::from(LENGTH);
        for again in [AGAIN_PAGES, length, length] {
            fill(&conn);
            checkpoint.finish(&conn, &ReaderGate::default());
            let expected = checkpoint.pages.load(Ordering::Relaxed) + again;
            assert_eq!(checkpoint.finish, expected);
        }
        drop(reader);
        checkpoint.finish(&conn, &ReaderGate::default());
        assert_eq!((checkpoint.finish, checkpoint.again), (length, AGAIN_PAGES));
    }

    /// Finishes a checkpoint while `reader` is inside the gate, which it leaves once it is shut.
    fn finish_beside(reader: Connection, conn: &Connection, checkpoint: &mut Checkpointer) {
        checkpoint.wait_max = Duration::from_secs(20);
        let gate = ReaderGate::default();
        let (inside, entered) = sync_channel(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _inside = gate.enter();
                inside.send(()).unwrap();
                wait_until_shut(&gate);
                drop(reader);
            });
            entered.recv().unwrap();
            checkpoint.finish(conn, &gate);
        });
    }

    #[test]
    fn readers_that_overlap_wait_for_the_rest_of_a_checkpoint() {
        let folder = Folder::new();
        let (conn, mut checkpoint) = writer(&folder);
        let reader = reader(&folder);
        fill(&conn);
        assert!(copy(&conn) > Some(0));
        finish_beside(reader, &conn, &mut checkpoint);
        assert_eq!((checkpoint.finish, checkpoint.again), (u64::from(LENGTH), AGAIN_PAGES));
    }

    #[test]
    fn a_reader_of_the_last_page_is_waited_for_too_so_that_the_wal_restarts() {
        let folder = Folder::new();
        let (conn, mut checkpoint) = writer(&folder);
        fill(&conn);
        let reader = reader(&folder);
        assert_eq!(copy(&conn), Some(0));
        finish_beside(reader, &conn, &mut checkpoint);
        write(&conn, &mut checkpoint, 1);
        let pages = checkpoint.pages.load(Ordering::Relaxed);
        assert!(pages < 30, "{pages} pages");
    }

    #[test]
    fn without_its_thread_the_writer_checkpoints() {
        let folder = Folder::new();
        let (conn, mut checkpoint) = writer(&folder);
        checkpoint.requests = None;
        write(&conn, &mut checkpoint, 100);
        let pages = checkpoint.pages.load(Ordering::Relaxed);
        assert!(pages < u64::from(2 * LENGTH), "{pages} pages");
    }

    #[test]
    fn after_a_restart_by_others_a_checkpoint_begins_at_its_length() {
        let folder = Folder::new();
        let (conn, mut checkpoint) = writer(&folder);
        let reader = reader(&folder);
        write(&conn, &mut checkpoint, 200);
        assert!(checkpoint.finish > 2_000);
        drop(reader);
        checkpoint.wait();
        limit::empty(&conn);
        write(&conn, &mut checkpoint, 1);
        assert_eq!(checkpoint.finish, u64::from(LENGTH));
    }

    #[test]
    fn a_wal_with_a_reader_grows_and_restarts_afterwards() {
        let folder = Folder::new();
        let (conn, mut checkpoint) = writer(&folder);
        let reader = reader(&folder);
        write(&conn, &mut checkpoint, 200);
        let read = checkpoint.pages.load(Ordering::Relaxed);
        assert!(read > 2_000, "{read} pages");
        drop(reader);
        write(&conn, &mut checkpoint, 100);
        let afterwards = checkpoint.pages.load(Ordering::Relaxed);
        assert!(afterwards < u64::from(3 * LENGTH), "{afterwards} pages");
    }
}
