//! Waits for several futures at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The outputs of all futures, in their order.
pub(in super::super) async fn all<F: Future>(
    futures: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_ready = true;
        let all = running.iter_mut().zip(&mut outputs);
        for (future, output) in all.filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(found) => *output = Some(found),
                Poll::Pending => is_ready = false,
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
