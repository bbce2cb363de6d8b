//! A few threads of its own for work that blocks.
//!
//! The runtime's threads for such work are as many as names are looked up at a time, and each keeps
//! what was allocated on it for its own next allocation: what takes memory, done on any of them in
//! turn, would take it dozens of times.
//!
//! Not here: how much of it goes on at a time, which whoever asks for it bounds.

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// The threads; they begin when there is work, and end when there is none.
#[derive(Debug)]
pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    /// At most so many, of this name.
    pub(crate) fn new(name: &str, most: usize) -> Self {
        let threads =
            Builder::new_current_thread().max_blocking_threads(most).thread_name(name).build();
        Self(threads.ok())
    }

    /// Does some work on one of them, or after it where all are busy.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        match &self.0 {
            Some(threads) => threads.spawn_blocking(work),
            // There is no reason that it cannot be made; others' threads will do.
            None => tokio::task::spawn_blocking(work),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Nobody waits here: this may be one of the threads that serve.
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn work_goes_on_few_threads_however_much_of_it_there_is() {
        let threads = Threads::new("few", 2);
        let own = || {
            // Long enough for a third thread to begin, were there one.
            std::thread::park_timeout(Duration::from_millis(1));
            (std::thread::current().id(), std::thread::current().name() == Some("few"))
        };
        let work: Vec<_> = (0..40).map(|_| threads.run(own)).collect();
        let mut seen = HashSet::new();
        for work in work {
            let (thread, named) = work.await.unwrap();
            assert!(named);
            seen.insert(thread);
        }
        assert!(seen.len() <= 2, "{} threads", seen.len());
    }
}
