//! Requests in progress: each is finished even if its client has disconnected.

use std::sync::{Arc, Mutex, PoisonError};

use log::Level;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};

use crate::http_server::reply::Reply;
use crate::http_server::{Call, Handler};
use crate::log::events;

/// Requests in progress.
#[derive(Default)]
pub(super) struct RequestTasks(Mutex<JoinSet<()>>);

impl RequestTasks {
    /// Handles a request in a task, with these permits until then. The channel closes without a
    /// reply if the handler panics.
    pub(super) fn spawn(
        &self,
        handler: Arc<dyn Handler>,
        call: Call,
        permits: impl Send + 'static,
    ) -> oneshot::Receiver<Reply> {
        let (answer, answered) = oneshot::channel();
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(ended) = tasks.try_join_next() {
            report(ended);
        }
        tasks.spawn(async move {
            let reply = handler.handle(call).await;
            drop(permits);
            // Its client may have disconnected in the meantime.
            let _ = answer.send(reply);
        });
        answered
    }

    /// Completes once all have ended.
    pub(super) async fn ended(&self) {
        let mut tasks = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    }
}

/// Logs that a task panicked.
pub(super) fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        let fields = [("error", error.to_string().into())];
        events::event(Level::Error, "task panicked", &fields);
    }
}
