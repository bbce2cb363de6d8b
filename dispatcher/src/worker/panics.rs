//! Catches panics in the worker's tasks: the task fails, and the scheduler releases its slot.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// Runs a future to its end; `None` if it panicked. Pinned, because a caller that moved it here
/// would have room for it twice.
pub(super) fn caught<T>(
    mut future: Pin<&mut impl Future<Output = T>>,
) -> impl Future<Output = Option<T>> {
    poll_fn(move |cx| {
        let poll = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx).map(Some)));
        // The future is not polled again.
        poll.unwrap_or(Poll::Ready(None))
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn a_future_that_panics_has_no_result() {
        assert_eq!(caught(pin!(async { 7 })).await, Some(7));
        let panics = pin!(async {
            if true {
                panic!("on purpose")
            }
        });
        assert_eq!(caught(panics).await, None);
    }
}
