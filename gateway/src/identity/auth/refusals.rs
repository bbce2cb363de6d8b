//! Says in the log why tokens are refused: one line for each reason and minute, with a count.
//!
//! Not here: the token, and anything of it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use log::Level;
use serde_json::json;
use weir_common::logging;
use weir_common::time::Tick;
use weir_common::token::Flaw;

/// Between two lines of one reason.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What was refused lately.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_reason: Mutex<HashMap<&'static str, Seen>>,
}

/// What was refused for one reason.
#[derive(Debug, Default)]
struct Seen {
    told: Option<Tick>,
    /// How many since then.
    count: u64,
}

impl Refusals {
    /// Takes note of a token that is refused at `now`.
    pub(super) fn tell(&self, flaw: Flaw, now: Tick) {
        if let Some(count) = self.due(flaw, now) {
            let fields = [
                ("reason", json!(flaw.word())),
                ("detail", json!(flaw.detail())),
                ("count", json!(count)),
            ];
            logging::event(Level::Warn, "tokens are refused", &fields);
        }
    }

    /// How many to tell of, where a line is due.
    fn due(&self, flaw: Flaw, now: Tick) -> Option<u64> {
        let mut by_reason = self.by_reason.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = by_reason.entry(flaw.word()).or_default();
        seen.count += 1;
        let is_due = seen.told.is_none_or(|told| now.since(told) >= TELL_EVERY);
        is_due.then(|| {
            seen.told = Some(now);
            std::mem::take(&mut seen.count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_one_line_a_minute_which_counts_those_before_it() {
        let refusals = Refusals::default();
        let at = |seconds: u64| Tick(seconds * 1_000_000);
        assert_eq!(refusals.due(Flaw::Audience, at(0)), Some(1));
        assert_eq!(refusals.due(Flaw::Audience, at(1)), None);
        assert_eq!(refusals.due(Flaw::Expired, at(1)), Some(1), "another reason");
        assert_eq!(refusals.due(Flaw::Audience, at(59)), None);
        assert_eq!(refusals.due(Flaw::Audience, at(60)), Some(3));
    }
}
