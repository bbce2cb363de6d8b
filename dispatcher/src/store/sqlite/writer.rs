//! The one thread that writes: takes what is asked in batches, and commits each batch once.
//!
//! # Invariants
//!
//! 1. Nobody is answered before what they asked for is on disk, or is certain not to be.
//! 2. One that is refused, or goes wrong for a reason of its own, leaves nothing behind and does
//!    no harm to those it shares a batch with. Where the disk fails, the whole batch did nothing.
//! 3. A failure ends with its batch: the next is tried anew.
//! 4. What would be written to a file that is not at its name any more is not written
//!    (`file_identity`).
//!
//! Not here: what is asked (the files beside this one), whose turn it is (`queue`).

mod counters;
mod queue;
mod task;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use log::Level;
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};
use weir_common::log::events;
use weir_common::time::Clock;

use crate::store::StoreError;
use crate::store::encryption::Sealer;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::file_identity::Place;
use crate::store::sqlite::pragmas::CHECKPOINT_PAGES;
use crate::store::sqlite::schema;
use crate::store::sqlite::steady_clock::Steady;
use crate::store::sqlite::wal::checkpointer::Fold;
use crate::store::sqlite::wal::limit::{self, Bound};
use crate::store::sqlite::wal::owner;
pub(super) use crate::store::sqlite::writer::counters::{Shown, Tally};
use crate::store::sqlite::writer::queue::Line;
pub(super) use crate::store::sqlite::writer::queue::Size;
use crate::store::sqlite::writer::task::{Asked, Task, caught};

/// What may wait for the writer; a second's work, at the least.
const WAITING_MAX: usize = 4_096;

/// A batch is committed after so many, whatever else waits.
const BATCH_MAX: usize = 1_024;

/// Nobody's answer is held back longer than this for the sake of those behind.
const BATCH_TIME_MAX: Duration = Duration::from_millis(3);

/// After so long without work the log of changes is folded into the database.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// What is at hand for work on the writer's thread.
pub(super) struct Desk {
    pub(super) conn: Connection,
    pub(super) sealer: Sealer,
    pub(super) clock: Clock,
    pub(super) tally: Tally,
    pub(super) steady: Steady,
    /// The workspace whose job was taken a step further last.
    pub(super) job_turn: i64,
    /// Keeps the log of changes from growing while it is read.
    pub(super) log: Bound,
    /// Where the files are.
    pub(super) place: Place,
}

enum Call {
    Task(Box<dyn Task>, Size),
    End(oneshot::Sender<Result<(), StoreError>>),
}

/// The way to the writer.
pub(super) struct Writer {
    calls: Option<mpsc::Sender<Call>>,
    room: Arc<Semaphore>,
    shown: Arc<Shown>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. It keeps the lock until the connection is closed.
    pub(super) fn start(mut desk: Desk, path: &Path, mut lock: File) -> std::io::Result<Self> {
        let fold = Fold::beside(path, &mut desk.conn, CHECKPOINT_PAGES)?;
        let (mut writer, mut thread) = Self::over(desk);
        let path = path.to_owned();
        thread.fold = Some(fold);
        let thread =
            std::thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
                thread.run();
                if let Err(error) = owner::closed(&path, &mut lock) {
                    let cause = error.to_string();
                    events::event(Level::Warn, "store_close_unnoted", &[("cause", cause.into())]);
                }
                // Another process may come in only now that the connection is closed.
                drop(lock);
            })?;
        writer.thread = Some(thread);
        Ok(writer)
    }

    /// The way to a thread that does not run yet.
    fn over(desk: Desk) -> (Self, Thread) {
        let (calls, inbox) = mpsc::channel();
        let room = Arc::new(Semaphore::new(WAITING_MAX));
        let shown = Arc::new(Shown::default());
        shown.show(&desk.tally);
        let writer = Self {
            calls: Some(calls),
            room: Arc::clone(&room),
            shown: Arc::clone(&shown),
            thread: None,
        };
        let written = desk.tally;
        let (fold, line, ending, folded) = (None, Line::new(), None, true);
        let thread = Thread { fold, written, desk, inbox, line, room, shown, ending, folded };
        (writer, thread)
    }

    /// What was there after the last commit.
    pub(super) fn shown(&self) -> &Shown {
        &self.shown
    }

    /// Has small work done, waiting for room if there is none.
    pub(super) async fn ask<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut Desk) -> Result<T, Fault> + Send + 'static,
    {
        self.ask_for(Size::Small, work).await
    }

    /// Has work done, waiting for room if there is none.
    pub(super) async fn ask_for<T, W>(&self, size: Size, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut Desk) -> Result<T, Fault> + Send + 'static,
    {
        let room = self.room.acquire().await.map_err(|_| gone())?;
        // The writer gives it back once it does the work.
        room.forget();
        self.hand_over(size, work).await
    }

    /// Has work done, or says that there is no room for it.
    pub(super) async fn ask_if_room<T, W>(&self, size: Size, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut Desk) -> Result<T, Fault> + Send + 'static,
    {
        match self.room.try_acquire() {
            Ok(room) => room.forget(),
            Err(tokio::sync::TryAcquireError::NoPermits) => return Err(StoreError::Busy),
            Err(tokio::sync::TryAcquireError::Closed) => return Err(gone()),
        }
        self.hand_over(size, work).await
    }

    async fn hand_over<T, W>(&self, size: Size, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut Desk) -> Result<T, Fault> + Send + 'static,
    {
        let (task, answered) = Asked::new(work);
        self.send(Call::Task(Box::new(task), size))?;
        answered.await.map_err(|_| gone())?
    }

    fn send(&self, call: Call) -> Result<(), StoreError> {
        let calls = self.calls.as_ref().ok_or_else(gone)?;
        calls.send(call).map_err(|_| gone())
    }

    /// Takes nothing more, finishes what was asked, and notes that we ended in order.
    pub(super) async fn end(&self) -> Result<(), StoreError> {
        self.room.close();
        let (answer, answered) = oneshot::channel();
        self.send(Call::End(answer))?;
        answered.await.map_err(|_| gone())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Without a way to it the thread ends after the batch that it is in.
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

/// What those are told who come after the end.
pub(super) fn gone() -> StoreError {
    StoreError::Unavailable("it was closed".into())
}

struct Thread {
    /// Folds the log beside us; without it SQLite does so within commits.
    fold: Option<Fold>,
    desk: Desk,
    inbox: Receiver<Call>,
    /// What has been taken out of it, and waits.
    line: Line<Box<dyn Task>>,
    room: Arc<Semaphore>,
    shown: Arc<Shown>,
    /// The tally as it is on disk.
    written: Tally,
    /// Who waits for the end, once somebody does.
    ending: Option<oneshot::Sender<Result<(), StoreError>>>,
    /// Whether the log of changes has been folded into the database since the last of them.
    folded: bool,
}

impl Thread {
    fn run(mut self) {
        loop {
            if !self.work_once() {
                match self.inbox.recv_timeout(IDLE_AFTER) {
                    Ok(call) => self.take(call),
                    Err(RecvTimeoutError::Timeout) => self.fold(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            if let Some(answer) = self.ending.take() {
                return self.end(answer);
            }
        }
    }

    /// Does one batch of what has been asked; says whether anything was.
    fn work_once(&mut self) -> bool {
        self.look();
        let Some((first, size)) = self.line.first() else { return false };
        self.batch(first, size);
        true
    }

    /// Lines up all that has come.
    fn look(&mut self) {
        while let Ok(call) = self.inbox.try_recv() {
            self.take(call);
        }
    }

    fn take(&mut self, call: Call) {
        match call {
            Call::Task(task, size) => self.line.push(task, size),
            Call::End(answer) => self.ending = Some(answer),
        }
    }

    fn end(mut self, answer: oneshot::Sender<Result<(), StoreError>>) {
        // What was handed over before the end was announced is still done.
        while self.work_once() {}
        self.folded = false;
        let ended = self.note_the_end();
        self.fold();
        drop(self);
        let _ = answer.send(ended.map_err(|fault| fault.told()));
    }

    fn note_the_end(&mut self) -> Result<(), Fault> {
        let Desk { conn, tally, steady, clock, .. } = &mut self.desk;
        tally.steady = (steady.now(), clock.now().unix);
        let change = conn.unchecked_transaction()?;
        tally.write(&change)?;
        schema::set_meta(&change, schema::CLEAN_SHUTDOWN, &[1])?;
        Ok(change.commit()?)
    }

    fn batch(&mut self, first: Box<dyn Task>, size: Size) {
        let began = self.desk.clock.now().tick;
        let changes = self.desk.conn.total_changes();
        let mut answers: Vec<(Box<dyn Task>, Result<(), StoreError>)> = Vec::new();
        let mut next = Some(first);
        let mut went = self.desk.conn.execute_batch("BEGIN IMMEDIATE").map_err(Fault::from);
        while let Some(mut task) = next.take() {
            self.room.add_permits(1);
            let came = if went.is_ok() { self.work(task.as_mut(), size) } else { Ok(Ok(())) };
            let own = came.unwrap_or_else(|fault| {
                went = Err(fault);
                Ok(())
            });
            answers.push((task, own));
            let late = self.desk.clock.now().tick.since(began) >= BATCH_TIME_MAX;
            if went.is_ok() && !late && size == Size::Small && answers.len() < BATCH_MAX {
                self.look();
                next = self.line.small();
            }
        }
        let went = went.and_then(|()| self.commit(changes)).map_err(|fault| self.undo(&fault));
        for (task, own) in answers {
            task.answer(went.clone().and(own));
        }
        self.fold.iter_mut().for_each(|fold| fold.committed(&self.desk.conn));
        let now = self.desk.clock.now().tick;
        // Of two that copy at one time, one fails.
        let copied = || self.fold.iter_mut().for_each(Fold::wait);
        self.desk.log.keep(&self.desk.conn, now, copied);
    }

    /// Does one task. What goes wrong for a reason of its own is its own answer; an error of the
    /// disk is everybody's.
    ///
    /// Within a savepoint SQLite keeps a copy of every page as it was. Large work is alone in its
    /// transaction, and needs none: the transaction itself is undone.
    fn work(&mut self, task: &mut dyn Task, size: Size) -> Result<Result<(), StoreError>, Fault> {
        let tally = self.desk.tally;
        let [before, after, undo, redo] = match size {
            Size::Small => ["SAVEPOINT task", "RELEASE task", "ROLLBACK TO task", "RELEASE task"],
            Size::Large => ["", "", "ROLLBACK", "BEGIN IMMEDIATE"],
        };
        self.say(before)?;
        match caught(|| task.work(&mut self.desk)) {
            Ok(()) => self.say(after).map(Ok),
            Err(fault) if fault.is_the_disks() => Err(fault),
            Err(fault) => {
                self.desk.tally = tally;
                self.say(undo)?;
                self.say(redo)?;
                let cause = fault.to_string();
                events::event(Level::Error, "store_task_failed", &[("cause", cause.into())]);
                Ok(Err(fault.told()))
            }
        }
    }

    fn commit(&mut self, changes: u64) -> Result<(), Fault> {
        let changed = self.desk.conn.total_changes() != changes;
        if self.desk.tally != self.written {
            self.desk.tally.write(&self.desk.conn)?;
        }
        if let Some(lost) = self.desk.place.lost().filter(|_| changed) {
            return Err(Fault::Lost(lost.to_owned()));
        }
        self.say("COMMIT")?;
        self.written = self.desk.tally;
        if changed {
            self.folded = false;
            self.shown.committed(&self.written);
            if self.shown.failing.swap(false, Ordering::Relaxed) {
                events::event(Level::Info, "store_recovered", &[]);
            }
        }
        Ok(())
    }

    fn undo(&mut self, fault: &Fault) -> StoreError {
        self.desk.tally = self.written;
        // Some errors have undone everything already.
        if !self.desk.conn.is_autocommit() {
            let _ = self.desk.conn.execute_batch("ROLLBACK");
        }
        if !self.shown.failing.swap(true, Ordering::Relaxed) {
            let cause = fault.to_string();
            events::event(Level::Error, "store_cannot_write", &[("cause", cause.into())]);
        }
        fault.told()
    }

    /// Says something to SQLite, or nothing.
    fn say(&self, sql: &str) -> Result<(), Fault> {
        if sql.is_empty() {
            return Ok(());
        }
        self.desk.conn.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Folds the log of changes into the database and empties it, unless somebody reads it.
    fn fold(&mut self) {
        if !std::mem::replace(&mut self.folded, true) {
            self.fold.iter_mut().for_each(Fold::wait);
            limit::empty(&self.desk.conn);
        }
    }
}

#[cfg(test)]
pub(crate) mod manual;
