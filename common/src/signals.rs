//! The signals an operator sends: to stop, and to reload.
//!
//! Not here: what a stop or a reload does.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

/// The signals that we take, from the start on: by default each of them would kill.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// A file may grow no further (`ulimit -f`): the write fails as well, and that is dealt with.
    _too_large: Signal,
}

/// `SIGXFSZ`, on Linux, macOS and the BSDs.
const TOO_LARGE: i32 = 25;

impl Signals {
    /// Takes them, within a tokio runtime.
    ///
    /// # Errors
    ///
    /// Where the system does not let us.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            _too_large: signal(SignalKind::from_raw(TOO_LARGE))?,
        })
    }

    /// Waits for a signal to stop; `reload` is begun on one to reload, and goes on beside: a file
    /// may be slow to read, and a stop must not wait for it.
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
