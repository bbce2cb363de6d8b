//! A gate that makes our readers wait for the moment in which the WAL restarts.
//!
//! SQLite restarts the WAL only when nothing reads from it. Without a gate, reads that overlap
//! without a gap would let it grow without limit.
//!
//! Not here: readers of other processes, such as a backup, which do not pass this gate.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A gate that readers pass.
#[derive(Debug, Default)]
pub(crate) struct ReaderGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inside: usize,
    shut: bool,
}

/// A reader inside the gate, until it is dropped.
pub(crate) struct ReaderGuard<'a>(&'a ReaderGate);

impl ReaderGate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters, once the gate is open.
    pub(crate) fn enter(&self) -> ReaderGuard<'_> {
        let waited = self.changed.wait_while(self.state(), |state| state.shut);
        waited.unwrap_or_else(PoisonError::into_inner).inside += 1;
        ReaderGuard(self)
    }

    /// Shuts the gate and runs `work` while no reader is inside; `None` if one stays longer than
    /// `wait_max`.
    pub(crate) fn while_empty<T>(&self, wait_max: Duration, work: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.state();
        state.shut = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, wait_max, |state| state.inside > 0);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        let done = (!timeout.timed_out()).then(work);
        self.state().shut = false;
        self.changed.notify_all();
        done
    }
}

impl Drop for ReaderGuard<'_> {
    fn drop(&mut self) {
        self.0.state().inside -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Waits until a gate is shut.
    pub(crate) fn wait_until_shut(gate: &ReaderGate) {
        let waited = gate.changed.wait_timeout_while(gate.state(), LONG, |state| !state.shut);
        let (state, waited) = waited.unwrap();
        drop(state);
        assert!(!waited.timed_out(), "the gate stays open");
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_reader_inside_is_waited_for_and_a_later_one_waits() {
        let gate = ReaderGate::default();
        let first = gate.enter();
        std::thread::scope(|scope| {
            let (order, entries) = mpsc::channel();
            let second = order.clone();
            let shut = scope.spawn(|| gate.while_empty(LONG, move || order.send("work").unwrap()));
            while !gate.state().shut {
                std::thread::yield_now();
            }
            let late = scope.spawn(|| {
                let (_inside, second) = (gate.enter(), second);
                second.send("late").unwrap();
            });
            drop(first);
            assert_eq!(shut.join().unwrap(), Some(()));
            late.join().unwrap();
            assert_eq!(entries.iter().take(2).collect::<Vec<_>>(), ["work", "late"]);
        });
    }

    #[test]
    fn a_reader_that_stays_for_too_long_keeps_none_out() {
        let gate = ReaderGate::default();
        let _inside = gate.enter();
        assert_eq!(gate.while_empty(Duration::ZERO, || ()), None);
        drop(gate.enter());
    }
}
