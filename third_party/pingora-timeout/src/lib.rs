//! Timeouts as Pingora 0.9.1 calls them, on tokio's timers; one that is over can be put off.
//!
//! # Invariants
//!
//! 1. Work that is done at once needs no timer: there is one from the first time it has to wait.
//! 2. A timeout ends when it is over and nothing puts it off.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
pub use tokio::time::sleep;
use tokio::time::Sleep;

/// How much longer a timeout of this length has that is over; nothing where it ends.
pub type PutOff = fn(Duration) -> Option<Duration>;

static PUT_OFF: OnceLock<PutOff> = OnceLock::new();

/// Asks `put_off` of every timeout that is over. The first caller decides for the process.
pub fn put_off_with(put_off: PutOff) {
    PUT_OFF.get_or_init(|| put_off);
}

/// Work, or the end of its time, whichever comes first.
pub fn timeout<W: Future>(duration: Duration, work: W) -> Timeout<W> {
    Timeout { work, duration, timer: None }
}

/// A timeout is over.
#[derive(Debug)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the timeout is over")
    }
}

impl std::error::Error for Elapsed {}

pin_project! {
    /// What [`timeout`] gives.
    #[must_use = "nothing is done until it is awaited"]
    pub struct Timeout<W> {
        #[pin]
        work: W,
        duration: Duration,
        timer: Option<Pin<Box<Sleep>>>,
    }
}

impl<W: Future> Future for Timeout<W> {
    type Output = Result<W::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(done) = this.work.poll(context) {
            return Poll::Ready(Ok(done));
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(*this.duration)));
        loop {
            ready!(timer.as_mut().poll(context));
            let Some(more) = PUT_OFF.get().and_then(|put_off| put_off(*this.duration)) else {
                return Poll::Ready(Err(Elapsed));
            };
            timer.set(sleep(more));
        }
    }
}

/// What Pingora sets of its own timers; tokio's need none of it.
pub mod fast_timeout {
    use std::time::Duration;

    /// What Pingora shows where nothing is configured.
    pub const DEFAULT_FAST_TIMEOUT_TO_TOKIO_THRESHOLD: Duration = Duration::from_secs(900);

    /// Every timeout is tokio's already.
    pub fn set_fast_timeout_to_tokio_threshold(_threshold: Option<Duration>) {}

    /// There is no thread to pause.
    pub fn pause_for_fork() {}

    /// There was none.
    pub fn unpause() {}
}
