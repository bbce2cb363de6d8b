//! The writer thread: executes calls in batches, and commits each batch once.
//!
//! # Invariants
//!
//! 1. No call returns before its change is on disk, or is certain not to be.
//! 2. A call that is refused or fails for its own reason changes nothing, and does not affect the
//!    others in its batch. If the disk fails, the whole batch changes nothing.
//! 3. A failure ends with its batch: the next one is executed normally.
//! 4. Nothing is written to a file that was moved or deleted (`file_identity`).
//!
//! Not here: the calls (the files beside this one), their order (`queue`).

pub mod counters;
pub mod manual;
pub mod queue;
pub mod session;
mod task;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use log::Level;
use tokio::sync::{Semaphore, oneshot};
use weir_common::log::events;

use crate::store::StoreError;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::pragmas::CHECKPOINT_PAGES;
use crate::store::sqlite::schema;
use crate::store::sqlite::wal::checkpointer::Checkpointer;
use crate::store::sqlite::wal::{limit, owner};
use crate::store::sqlite::writer::counters::{Counters, Shown};
use crate::store::sqlite::writer::queue::{Size, TaskQueue};
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::writer::task::{Submitted, Task, caught};

/// Calls that may wait for the writer: at least a second of work.
const WAITING_MAX: usize = 4_096;

/// Calls in a batch, at most.
const BATCH_MAX: usize = 1_024;

/// A batch accepts further calls for this long, so that it delays no answer for longer.
const BATCH_TIME_MAX: Duration = Duration::from_millis(3);

/// The WAL is checkpointed after this time without work.
const IDLE_AFTER: Duration = Duration::from_secs(1);

enum Call {
    Task(Box<dyn Task>, Size),
    End(oneshot::Sender<Result<(), StoreError>>),
}

/// A handle to the writer thread.
pub(super) struct Writer {
    calls: Option<mpsc::Sender<Call>>,
    room: Arc<Semaphore>,
    shown: Arc<Shown>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. It keeps the lock until the connection is closed.
    pub(super) fn start(
        mut session: WriteSession,
        path: &Path,
        database: Arc<File>,
        mut lock: File,
    ) -> std::io::Result<Self> {
        let (path, file) = (path.to_owned(), Arc::clone(&database));
        let checkpointer = Checkpointer::beside(&path, file, &mut session.conn, CHECKPOINT_PAGES)?;
        let (mut writer, mut thread) = Self::over(session);
        thread.checkpointer = Some(checkpointer);
        let thread =
            std::thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
                thread.run();
                // Only now: SQLite has closed the writer's connection.
                drop(database);
                if let Err(error) = owner::closed(&path, &mut lock) {
                    let fields = [("cause", error.to_string().into())];
                    events::event(Level::Warn, "clean shutdown not recorded", &fields);
                }
                // Only now, with the connection closed, may another process open the database.
                drop(lock);
            })?;
        writer.thread = Some(thread);
        Ok(writer)
    }

    /// The handle, and a thread that does not run yet.
    fn over(session: WriteSession) -> (Self, Thread) {
        let (calls, inbox) = mpsc::channel();
        let room = Arc::new(Semaphore::new(WAITING_MAX));
        let shown = Arc::new(Shown::default());
        shown.show(&session.counters);
        let writer = Self {
            calls: Some(calls),
            room: Arc::clone(&room),
            shown: Arc::clone(&shown),
            thread: None,
        };
        let written = session.counters;
        let (checkpointer, tasks, ending, checkpointed) = (None, TaskQueue::new(), None, true);
        let thread = Thread {
            checkpointer,
            written,
            session,
            inbox,
            tasks,
            room,
            shown,
            ending,
            checkpointed,
        };
        (writer, thread)
    }

    /// The counters after the last commit.
    pub(super) fn shown(&self) -> &Shown {
        &self.shown
    }

    /// Runs small work; waits while the queue is full.
    pub(super) async fn run<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut WriteSession) -> Result<T, Fault> + Send + 'static,
    {
        self.run_sized(Size::Small, work).await
    }

    /// Runs work; waits while the queue is full.
    pub(super) async fn run_sized<T, W>(&self, size: Size, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut WriteSession) -> Result<T, Fault> + Send + 'static,
    {
        let room = self.room.acquire().await.map_err(|_| closed())?;
        // The writer returns the permit when it starts the work.
        room.forget();
        self.submit(size, work).await
    }

    /// Runs work, or fails if the queue is full.
    pub(super) async fn try_run<T, W>(&self, size: Size, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut WriteSession) -> Result<T, Fault> + Send + 'static,
    {
        match self.room.try_acquire() {
            Ok(room) => room.forget(),
            Err(tokio::sync::TryAcquireError::NoPermits) => return Err(StoreError::Busy),
            Err(tokio::sync::TryAcquireError::Closed) => return Err(closed()),
        }
        self.submit(size, work).await
    }

    async fn submit<T, W>(&self, size: Size, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut WriteSession) -> Result<T, Fault> + Send + 'static,
    {
        let (task, answered) = Submitted::new(work);
        self.send(Call::Task(Box::new(task), size))?;
        answered.await.map_err(|_| closed())?
    }

    fn send(&self, call: Call) -> Result<(), StoreError> {
        let calls = self.calls.as_ref().ok_or_else(closed)?;
        calls.send(call).map_err(|_| closed())
    }

    /// Refuses further work, finishes the queue, and records a clean shutdown.
    pub(super) async fn end(&self) -> Result<(), StoreError> {
        self.room.close();
        let (answer, answered) = oneshot::channel();
        self.send(Call::End(answer))?;
        answered.await.map_err(|_| closed())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread ends once the channel is closed and its queue is empty.
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("shown", &self.shown).finish_non_exhaustive()
    }
}

/// The error of calls after the end.
pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("it was closed".into())
}

struct Thread {
    /// `None` in simulations: SQLite checkpoints within commits.
    checkpointer: Option<Checkpointer>,
    session: WriteSession,
    inbox: Receiver<Call>,
    /// Received calls that wait.
    tasks: TaskQueue<Box<dyn Task>>,
    room: Arc<Semaphore>,
    shown: Arc<Shown>,
    /// The counters as they are on disk.
    written: Counters,
    /// The caller of [`Writer::end`], once there is one.
    ending: Option<oneshot::Sender<Result<(), StoreError>>>,
    /// Whether the WAL was checkpointed since the last change.
    checkpointed: bool,
}

impl Thread {
    fn run(mut self) {
        loop {
            if !self.work_once() {
                match self.inbox.recv_timeout(IDLE_AFTER) {
                    Ok(call) => self.queue(call),
                    Err(RecvTimeoutError::Timeout) => self.checkpoint(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            if let Some(answer) = self.ending.take() {
                return self.end(answer);
            }
        }
    }

    /// Executes one batch; returns whether there was any work.
    fn work_once(&mut self) -> bool {
        self.queue_received();
        let Some((first, size)) = self.tasks.first() else { return false };
        self.batch(first, size);
        true
    }

    /// Queues all received calls.
    fn queue_received(&mut self) {
        while let Ok(call) = self.inbox.try_recv() {
            self.queue(call);
        }
    }

    fn queue(&mut self, call: Call) {
        match call {
            Call::Task(task, size) => self.tasks.push(task, size),
            Call::End(answer) => self.ending = Some(answer),
        }
    }

    fn end(mut self, answer: oneshot::Sender<Result<(), StoreError>>) {
        // Finishes the calls that were queued before the end.
        while self.work_once() {}
        self.checkpointed = false;
        let ended = self.record_clean_shutdown();
        self.checkpoint();
        drop(self);
        let _ = answer.send(ended.map_err(|fault| fault.store_error()));
    }

    fn record_clean_shutdown(&mut self) -> Result<(), Fault> {
        self.session.note_clocks();
        let WriteSession { conn, counters, .. } = &self.session;
        let change = conn.unchecked_transaction()?;
        counters.write(&change)?;
        schema::set_meta(&change, schema::CLEAN_SHUTDOWN, &[1])?;
        Ok(change.commit()?)
    }

    fn batch(&mut self, first: Box<dyn Task>, size: Size) {
        let began = self.session.clock.now().tick;
        let changes = self.session.conn.total_changes();
        let mut answers: Vec<(Box<dyn Task>, Result<(), StoreError>)> = Vec::new();
        let mut next = Some(first);
        let mut result = self.execute("BEGIN IMMEDIATE");
        while let Some(mut task) = next.take() {
            self.room.add_permits(1);
            let first = answers.is_empty();
            let done = if result.is_ok() { self.work(task.as_mut(), first) } else { Ok(Ok(())) };
            let own = done.unwrap_or_else(|fault| {
                result = Err(fault);
                Ok(())
            });
            answers.push((task, own));
            let late = self.session.clock.now().tick.since(began) >= BATCH_TIME_MAX;
            if result.is_ok() && !late && size == Size::Small && answers.len() < BATCH_MAX {
                self.queue_received();
                next = self.tasks.small();
            }
        }
        let result = result.and_then(|()| self.commit(changes)).map_err(|fault| self.undo(&fault));
        for (task, own) in answers {
            task.answer(result.clone().and(own));
        }
        let (conn, gate) = (&self.session.conn, self.session.wal.gate());
        self.checkpointer.iter_mut().for_each(|one| one.committed(conn, &gate));
        let now = self.session.clock.now().tick;
        // Of two checkpoints at the same time, one would fail.
        let copied = || self.checkpointer.iter_mut().for_each(Checkpointer::wait);
        self.session.wal.keep(&self.session.conn, now, copied);
    }

    /// Runs one task. The inner error fails this task only; the outer one, of the disk, fails the
    /// whole batch.
    ///
    /// Within a savepoint SQLite copies every page before it changes. The `first` task of a batch
    /// needs none: the transaction itself is rolled back.
    fn work(&mut self, task: &mut dyn Task, first: bool) -> Result<Result<(), StoreError>, Fault> {
        let counters = self.session.counters;
        let [before, after, undo, redo] = if first {
            ["", "", "ROLLBACK", "BEGIN IMMEDIATE"]
        } else {
            ["SAVEPOINT task", "RELEASE task", "ROLLBACK TO task", "RELEASE task"]
        };
        self.execute(before)?;
        match caught(|| task.work(&mut self.session)) {
            Ok(()) => self.execute(after).map(Ok),
            Err(fault) if fault.is_disk_failure() => Err(fault),
            Err(fault) => {
                self.session.counters = counters;
                self.execute(undo)?;
                self.execute(redo)?;
                let cause = fault.to_string();
                events::event(Level::Error, "store task failed", &[("cause", cause.into())]);
                Ok(Err(fault.store_error()))
            }
        }
    }

    fn commit(&mut self, changes: u64) -> Result<(), Fault> {
        let changed = self.session.conn.total_changes() != changes;
        if changed || self.session.counters != self.written {
            self.session.note_clocks();
            self.session.counters.write(&self.session.conn)?;
        }
        if let Some(lost) = self.session.files.lost().filter(|_| changed) {
            return Err(Fault::Lost(lost.to_owned()));
        }
        let began = self.session.clock.now().tick;
        self.execute("COMMIT")?;
        self.written = self.session.counters;
        if changed {
            let now = self.session.clock.now().tick;
            let took = now.since(began);
            if let Some(times) = self.shown.commit_times.get() {
                times.observe(took.as_secs_f64());
            }
            self.checkpointed = false;
            self.shown.committed(&self.written);
            if self.shown.wrote(now) {
                events::event(Level::Info, "store writes recovered", &[]);
            }
        }
        Ok(())
    }

    fn undo(&mut self, fault: &Fault) -> StoreError {
        self.session.counters = self.written;
        // After some errors SQLite has rolled back already.
        if !self.session.conn.is_autocommit() {
            let _ = self.session.conn.execute_batch("ROLLBACK");
        }
        if self.shown.failed(self.session.clock.now().tick) {
            let cause = fault.to_string();
            events::event(Level::Error, "store writes failing", &[("cause", cause.into())]);
        }
        fault.store_error()
    }

    /// Executes a statement; empty text does nothing.
    fn execute(&self, sql: &str) -> Result<(), Fault> {
        if sql.is_empty() {
            return Ok(());
        }
        self.session.conn.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Checkpoints the WAL and truncates it, unless it is read.
    fn checkpoint(&mut self) {
        if !std::mem::replace(&mut self.checkpointed, true) {
            self.checkpointer.iter_mut().for_each(Checkpointer::wait);
            limit::empty(&self.session.conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Writer {
        /// Removes all permits, as if the queue were full; returns how many there were.
        pub(in crate::store::sqlite) fn use_all_room(&self) -> usize {
            self.room.forget_permits(WAITING_MAX)
        }

        pub(in crate::store::sqlite) fn room_left(&self) -> usize {
            self.room.available_permits()
        }

        pub(in crate::store::sqlite) fn restore_room(&self, room: usize) {
            self.room.add_permits(room);
        }
    }
}
