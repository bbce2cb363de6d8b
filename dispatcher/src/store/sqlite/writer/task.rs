//! A piece of work for the writer, and the caller that waits for its result.
//!
//! Not here: when it runs, and in which batch (`writer`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;

use crate::store::StoreError;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::writer::closed;
use crate::store::sqlite::writer::session::WriteSession;

/// A piece of work, with the caller that waits for it.
pub(super) trait Task: Send {
    /// Runs it within the batch's transaction.
    fn work(&mut self, session: &mut WriteSession) -> Result<(), Fault>;

    /// Returns the result to the caller, or the error if the work was not committed.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// Work with a result.
pub(super) struct Submitted<T, W> {
    work: Option<W>,
    result: Option<T>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, W> Task for Submitted<T, W>
where
    T: Send,
    W: FnOnce(&mut WriteSession) -> Result<T, Fault> + Send,
{
    fn work(&mut self, session: &mut WriteSession) -> Result<(), Fault> {
        if let Some(work) = self.work.take() {
            self.result = Some(work(session)?);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let Self { result, answer, .. } = *self;
        // The caller may no longer wait; the work is committed all the same.
        let _ = answer.send(committed.and_then(|()| result.ok_or_else(closed)));
    }
}

impl<T, W> Submitted<T, W> {
    /// The task, and a receiver of its result.
    pub(super) fn new(work: W) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (answer, answered) = oneshot::channel();
        (Self { work: Some(work), result: None, answer }, answered)
    }
}

/// Runs work; a panic, which is a bug, fails that work only.
pub(super) fn caught(work: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
    // The caller rolls back what a panic leaves half done.
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(Fault::Damaged("a task of the store broke".into())))
}
