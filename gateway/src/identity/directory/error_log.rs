//! Says in the log what is wrong with a directory, once for each entry and not without end.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use log::Level;
use serde_json::json;
use weir_common::logging;
use weir_common::time::Tick;

use crate::identity::directory::response::Kind;
use crate::limit::key::Owner;

/// Nobody mends more than this from one log; a metric counts all of them.
const REPORTS_MAX: usize = 100;

/// An entry that is still wrong is worth another line after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// What was said already.
#[derive(Debug, Default)]
pub(super) struct Report {
    said: Mutex<HashMap<Owner, Tick>>,
}

impl Report {
    /// Says what is wrong with an entry, where that was not said before.
    pub(super) fn unusable(&self, kind: Kind, name: &str, owner: Owner, why: &str, now: Tick) {
        if self.is_due(owner, now) {
            let entry = format!("{}/{name}", kind.plural());
            let fields = [("entry", json!(entry)), ("error", json!(why))];
            logging::event(Level::Error, "an entry of the directory cannot be used", &fields);
        }
    }

    fn is_due(&self, owner: Owner, now: Tick) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= REPORTS_MAX {
            said.retain(|_, at| now.since(*at) < AGAIN_AFTER);
        }
        let before = said.get(&owner).is_some_and(|at| now.since(*at) < AGAIN_AFTER);
        if before || (said.len() >= REPORTS_MAX && !said.contains_key(&owner)) {
            return false;
        }
        said.insert(owner, now);
        true
    }

    /// An entry is well: what is wrong with it next is news.
    pub(super) fn good(&self, owner: Owner) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).remove(&owner);
    }

    /// Says that nobody answers.
    pub(super) fn outage(url: &str, why: &str) {
        let fields = [("url", json!(url)), ("error", json!(why))];
        logging::event(Level::Error, "the directory does not answer", &fields);
    }

    /// Says that somebody answers again.
    pub(super) fn outage_over() {
        logging::event(Level::Info, "the directory answers again", &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::{Scope, Seed};

    #[test]
    fn an_entry_is_reported_once_and_no_more_than_a_hundred_are() {
        let report = Report::default();
        let owner = |n: u32| Seed::new([1; 16]).owner(Scope::Workspace, &n.to_be_bytes());
        assert!(report.is_due(owner(0), Tick(0)));
        assert!(!report.is_due(owner(0), Tick(1)));
        report.good(owner(0));
        assert!(report.is_due(owner(0), Tick(2)), "it was well in between");
        let due = (0..500).filter(|n| report.is_due(owner(*n), Tick(3))).count();
        assert_eq!(due, REPORTS_MAX - 1);
        let later = Tick(3).plus(AGAIN_AFTER);
        assert!(report.is_due(owner(499), later));
    }
}
