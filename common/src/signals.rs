//! The signals an operator sends: to stop, and to reload.
//!
//! Not here: what a stop or a reload does.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

/// Handlers of the signals that we use, installed at the start: by default each would kill.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// A file has reached its size limit (`ulimit -f`). Ignored: the failed write is handled.
    _too_large: Signal,
}

/// `SIGXFSZ`, on Linux, macOS and the BSDs.
const TOO_LARGE: i32 = 25;

impl Signals {
    /// Installs the handlers. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the system refuses one.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            _too_large: signal(SignalKind::from_raw(TOO_LARGE))?,
        })
    }

    /// Waits for SIGTERM or SIGINT. On each SIGHUP, `reload` starts in a task: a file may be slow
    /// to read, and a stop must not wait for it.
    pub async fn until_stop<R>(mut self, reload: impl Fn() -> R)
    where
        R: Future<Output = ()> + Send + 'static,
    {
        let mut reloads = JoinSet::new();
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    reloads.spawn(reload());
                }
                Some(_) = reloads.join_next() => {}
            }
        }
    }
}
