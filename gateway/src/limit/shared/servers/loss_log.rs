//! Logs that a server of the store is lost, with the reason, and that it is back: each reason once.
//!
//! Not here: whether it is lost (`servers::availability`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use log::Level;
use serde_json::json;
use weir_common::log::events;

/// The reason that was logged last of each server that is lost.
#[derive(Debug, Default)]
pub struct LossLog(Mutex<HashMap<String, String>>);

impl LossLog {
    /// Logs the loss of a server, unless this reason was the last.
    pub fn lost(&self, server: &str, why: String) {
        if self.is_new(server, &why) {
            let fields = [("store", json!(server)), ("error", json!(why))];
            events::event(Level::Error, "shared store unavailable", &fields);
        }
    }

    /// Whether this is not the reason that was logged last; it is from now on.
    fn is_new(&self, server: &str, why: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = known.insert(server.to_owned(), why.to_owned());
        earlier.is_none_or(|earlier| earlier != why)
    }

    /// Logs that a server is back.
    pub fn back(&self, server: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(server);
        events::event(Level::Info, "shared store available", &[("store", json!(server))]);
    }

    /// Forgets servers that the store has no more.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|server, _| is_known(server));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_new_once_until_the_server_is_back_or_unknown() {
        let losses = LossLog::default();
        let reasons = |given: &[&str]| given.iter().map(|why| losses.is_new("a:1", why)).collect();
        let new: Vec<bool> = reasons(&["down", "down", "full", "down"]);
        assert_eq!(new, [true, false, true, true]);
        assert!(losses.is_new("b:1", "down"), "another server");
        losses.back("a:1");
        let new: Vec<bool> = reasons(&["down", "down"]);
        assert_eq!(new, [true, false]);
        losses.retain(|server| server == "b:1");
        assert!(losses.is_new("a:1", "down"));
        assert!(!losses.is_new("b:1", "down"));
    }
}
