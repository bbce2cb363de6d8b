//! Catches panics in the worker's tasks: the task fails, and the scheduler releases its slot.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Runs a future to its end; `None` if it panicked.
pub(super) async fn caught<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let polled = poll_fn(|cx| {
        let poll = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx).map(Some)));
        // The future is not polled again.
        poll.unwrap_or(Poll::Ready(None))
    });
    polled.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_that_panics_has_no_result() {
        assert_eq!(caught(async { 7 }).await, Some(7));
        assert_eq!(
            caught(async {
                if true {
                    panic!("on purpose")
                }
            })
            .await,
            None
        );
    }
}
