//! Whether more attempts started at an endpoint than its pace allows, kills or no kills.
//!
//! A receiver sees arrivals, and a process that stood still, or a slow machine, bunches those. When
//! an attempt started it can tell to a second: not after it arrived, and not before the second in
//! its signature. Only what is too many whatever those seconds hide is a fault.

use super::{Judge, SECOND};
use crate::survival::cast::{REQUESTS, WINDOW};

impl Judge<'_> {
    /// An attempt started between the second that it was signed in and its arrival. A stretch of
    /// the window that begins with a second and surely holds more starts than may be is a fault.
    pub(super) fn pace(&mut self) {
        let window = WINDOW.as_micros() as u64;
        let [mut sure, mut seen] = [0_usize; 2];
        for endpoint in 0..self.state.starts.len() {
            let mut starts = self.state.starts[endpoint].clone();
            starts.sort_by_key(|start| start.at);
            let at: Vec<u64> = starts.iter().map(|start| start.at).collect();
            seen = seen.max(most_within(&at, window));
            if !self.clock_holds {
                continue;
            }
            // Sorted by when they were signed, each with the latest that it can have started.
            let mut bounds: Vec<(u64, u64)> = starts
                .iter()
                .map(|start| {
                    let from = (start.signed * SECOND).saturating_sub(self.unix_began);
                    (from, start.at.min(from + SECOND))
                })
                .collect();
            bounds.sort_unstable();
            let mut first = 0;
            while let Some((from, _)) = bounds.get(first).copied() {
                let within = bounds[first..].iter().take_while(|one| one.0 < from + window);
                let count = within.filter(|one| one.1 < from + window).count();
                sure = sure.max(count);
                if count > REQUESTS as usize {
                    self.fault(format!(
                        "e{endpoint}: {count} starts within {WINDOW:?} from {from}"
                    ));
                }
                first += bounds[first..].iter().take_while(|one| one.0 == from).count();
            }
        }
        self.tell("attempts", self.state.starts.iter().map(|all| all.len() as u64).sum());
        self.tell("most that surely started at an endpoint within its window", sure as u64);
        self.tell("most that arrived within it", seen as u64);
    }
}

/// The most of these sorted times that any stretch of so long holds.
fn most_within(times: &[u64], window: u64) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (last, time) in times.iter().enumerate() {
        while times[first] + window <= *time {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most
}
