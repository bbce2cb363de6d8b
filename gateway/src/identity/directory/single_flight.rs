//! Lets those who want the same wait in line, a few at a time.
//!
//! # Invariants
//!
//! 1. No more than `room` have a turn of one name at one time.
//! 2. A line is there only as long as somebody has a turn in it or waits for one.
//!
//! # Not here
//!
//! What they wait for (`directory`).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A line for each name that anybody wants now.
#[derive(Debug)]
pub struct Lines<N> {
    room: usize,
    lines: Mutex<HashMap<N, Arc<Semaphore>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn<'l, N: Copy + Eq + Hash> {
    lines: &'l Lines<N>,
    name: N,
    line: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<N: Copy + Eq + Hash> Lines<N> {
    /// Lines in which `room` have a turn at one time.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { room, lines: Mutex::default() }
    }

    /// Waits for a turn. Who stops waiting has left the line.
    pub async fn turn(&self, name: N) -> Turn<'_, N> {
        let new = || Arc::new(Semaphore::new(self.room));
        let line = self.open().entry(name).or_insert_with(new).clone();
        let mut turn = Turn { lines: self, name, line, permit: None };
        // No line is ever closed.
        turn.permit = turn.line.clone().acquire_owned().await.ok();
        turn
    }
}

impl<N> Lines<N> {
    fn open(&self) -> MutexGuard<'_, HashMap<N, Arc<Semaphore>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<N: Copy + Eq + Hash> Drop for Turn<'_, N> {
    fn drop(&mut self) {
        self.permit = None;
        let mut lines = self.lines.open();
        // The map's own and ours: everybody else who is in line has one too.
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    /// Whether the future is ready at its first poll.
    async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match future.as_mut().poll(context) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    #[test]
    fn a_line_has_room_for_so_many_and_others_are_not_in_it() {
        run(async {
            let lines = Lines::new(2);
            let (one, _two) = (lines.turn("a").await, lines.turn("a").await);
            assert!(at_once(lines.turn("a")).await.is_none());
            assert!(at_once(lines.turn("b")).await.is_some());
            drop(one);
            assert!(at_once(lines.turn("a")).await.is_some());
        });
    }

    #[test]
    fn a_line_is_gone_with_the_last_in_it_even_where_somebody_left() {
        run(async {
            let lines = Lines::new(1);
            let turn = lines.turn("a").await;
            assert!(at_once(lines.turn("a")).await.is_none(), "left without a turn");
            assert_eq!(lines.open().len(), 1);
            drop(turn);
            assert_eq!(lines.open().len(), 0);
        });
    }
}
