//! A small thread pool for blocking work.
//!
//! The runtime's own blocking pool has a thread for each concurrent name lookup, up to hundreds,
//! and each thread caches memory that was allocated on it. Work that needs much memory would on
//! that pool occupy it once per thread.
//!
//! Not here: limits of concurrent work, which callers set.

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// The threads; they start on demand and end when idle.
#[derive(Debug)]
pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    /// At most `most` threads with this name.
    pub(crate) fn new(name: &str, most: usize) -> Self {
        let threads =
            Builder::new_current_thread().max_blocking_threads(most).thread_name(name).build();
        Self(threads.ok())
    }

    /// Runs work on a thread; waits while all are busy.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        match &self.0 {
            Some(threads) => threads.spawn_blocking(work),
            // Building the pool failed: the runtime's own pool runs the work.
            None => tokio::task::spawn_blocking(work),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Does not wait: this may be a thread of the runtime.
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
    async fn any_amount_of_work_uses_few_threads() {
        let threads = Threads::new("few", 2);
        let own = || {
            // Long enough for a third thread to start, if one existed.
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
