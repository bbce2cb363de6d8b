//! The dispatcher as webhook owners, backends, receivers and operators use it.

mod access_tokens;
mod all_workspaces;
mod authorization;
mod behind_gateway;
mod dashboard;
mod durability;
mod event_types;
mod faults;
mod forecasting;
mod health;
mod hostile;
mod ingesting;
mod judging;
mod listing;
mod mailing;
mod openapi;
mod operating;
mod operator_events;
mod options;
mod owners;
mod pacing;
mod recording;
mod redelivering;
mod rekeying;
mod restoring;
mod retrying;
mod secrecy;
mod secrets;
mod signatures;
mod tls;
mod tools;
mod url_checks;
mod webhooks;

use serde_json::Value;
use weir_tests::api::Webhook;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::dispatcher::{self, Dispatcher};
use weir_tests::receiver::Receiver;

/// A dispatcher, and a receiver for its deliveries.
struct Stage {
    receiver: Receiver,
    dispatcher: Dispatcher,
}

impl Stage {
    /// With the default configuration.
    #[track_caller]
    fn new() -> Self {
        Self::with(|config| config)
    }

    /// With the default configuration as `change` changes it.
    #[track_caller]
    fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let config = change(dispatcher::config());
        Self { receiver: Receiver::start(), dispatcher: Dispatcher::start(&config, DIRECTORY) }
    }

    /// Registers a webhook of `ws_acme` at an endpoint of the receiver.
    #[track_caller]
    fn webhook(&self, path: &str, events: &[&str]) -> Webhook {
        self.dispatcher.create_webhook(&self.receiver.url(path), events)
    }
}

/// A text of a JSON object.
#[track_caller]
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name} in {value}"))
}

/// A timestamp of a JSON object, in milliseconds since 1970.
#[track_caller]
fn time(value: &Value, name: &str) -> u64 {
    weir_tests::timestamp::millis(text(value, name))
}

/// The attempts of a delivery: the start and the outcome of each.
#[track_caller]
fn attempts(delivery: &Value) -> Vec<(u64, String)> {
    let log = delivery["attempt_log"].as_array().unwrap_or_else(|| panic!("{delivery}"));
    log.iter().map(|one| (time(one, "started_at"), text(one, "outcome").to_owned())).collect()
}

/// The most starts within any window of `window_ms`; a start exactly one window later is outside.
fn most_within(starts: &[u64], window_ms: u64) -> usize {
    let mut sorted = starts.to_vec();
    sorted.sort_unstable();
    let count = |(at, start): (usize, &u64)| {
        sorted[at..].iter().take_while(|later| **later - start < window_ms).count()
    };
    sorted.iter().enumerate().map(count).max().unwrap_or(0)
}
