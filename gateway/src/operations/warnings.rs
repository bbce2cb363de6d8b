//! Passes warnings on that a key has nearly used an allowance: to the log, to a metric, and to the
//! operator's URL.
//!
//! # Invariants
//!
//! 1. A key has no warning of a limit until the last one's `quiet_until`, as long as [`KEYS_MAX`]
//!    suffices.
//! 2. A call that fails, or comes while [`CALLS_MAX`] others are in flight, is lost and counted.
//!
//! # Not here
//!
//! When a request causes a warning, and how long it stands (`limit::warnings`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use reqwest::{Client, header};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_common::log::events;
use weir_common::time::Tick;

use crate::config::shared::Shared;
use crate::limit::key::Key;
use crate::limit::warnings::Warning;
use weir_common::http_client;

/// Keys that are remembered to have been warned about.
const KEYS_MAX: usize = 10_000;

/// Calls of the operator's URL in flight.
const CALLS_MAX: usize = 4;

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Passes warnings on until the process ends.
pub async fn pass_on(shared: Arc<Shared>) {
    let Some(mut warnings) = shared.warnings.receiver() else { return };
    let mut calls = JoinSet::new();
    let url = shared.active.load().settings.warnings_url.clone();
    // Made for the first call at the latest: a reload may bring the URL.
    let mut client = url.map(|_| make_client());
    let mut warned = HashMap::new();
    while let Some(warning) = warnings.recv().await {
        let now = shared.clock.now();
        if !is_first(&mut warned, &warning, now.tick) {
            continue;
        }
        shared.metrics.warnings.with_label_values(&[&*warning.limit]).inc();
        let used = warning.usage.limit.saturating_sub(warning.usage.remaining);
        let reset = now.unix_of(warning.usage.full_at).seconds_up();
        let fields = [
            ("limit", json!(&*warning.limit)),
            ("key", json!(&*warning.name)),
            ("used", json!(used)),
            ("allowance", json!(warning.usage.limit)),
            ("reset", json!(reset)),
        ];
        events::event(Level::Warn, "limit nearly used up", &fields);
        let url = shared.active.load().settings.warnings_url.clone();
        let Some(url) = url else { continue };
        if let Ok(client) = client.get_or_insert_with(make_client) {
            let mut body: Value = fields.into_iter().collect();
            if let Some(members) = body.as_object_mut() {
                members.insert("time".to_owned(), json!(now.unix.rfc3339()));
            }
            call(&shared, client, &mut calls, url, body.to_string());
        } else {
            shared.metrics.warnings_lost.inc();
        }
    }
}

/// The client for the operator's URL. It repeats no call, which the server may pass on to a person.
fn make_client() -> Result<Client, String> {
    let client = http_client::builder(None, CALL_TIMEOUT).and_then(http_client::built);
    client.inspect_err(|why| {
        events::event(Level::Error, "warnings cannot be posted", &[("error", json!(why))]);
    })
}

/// Whether no earlier warning of a key stands; remembers that this one does.
fn is_first(warned: &mut HashMap<Key, Tick>, warning: &Warning, now: Tick) -> bool {
    if warned.get(&warning.key).is_some_and(|until| now < *until) {
        return false;
    }
    if warned.len() >= KEYS_MAX {
        warned.retain(|_, until| now < *until);
    }
    if warned.len() < KEYS_MAX {
        warned.insert(warning.key, warning.quiet_until);
    }
    true
}

/// Calls the operator's URL, without waiting for it.
fn call(shared: &Arc<Shared>, client: &Client, calls: &mut JoinSet<()>, url: String, body: String) {
    while calls.try_join_next().is_some() {}
    if calls.len() >= CALLS_MAX {
        return shared.metrics.warnings_lost.inc();
    }
    let request = client.post(url).header(header::CONTENT_TYPE, "application/json").body(body);
    let shared = shared.clone();
    calls.spawn(async move {
        let answered = request.send().await.and_then(reqwest::Response::error_for_status);
        if answered.is_err() {
            shared.metrics.warnings_lost.inc();
        }
    });
}

#[cfg(test)]
mod tests {
    use weir_common::limit::decision::Usage;

    use super::*;

    fn warning(key: u128, quiet_until: u64) -> Warning {
        Warning {
            key: Key::from_bits(key),
            limit: "workspace".into(),
            name: "ws_a".into(),
            usage: Usage { limit: 10, remaining: 2, full_at: Tick(0) },
            quiet_until: Tick(quiet_until),
        }
    }

    #[test]
    fn a_key_has_no_other_warning_while_one_stands() {
        let mut warned = HashMap::new();
        let mut first = |key, at| is_first(&mut warned, &warning(key, at + 60), Tick(at));
        assert_eq!([first(1, 0), first(1, 59), first(2, 5)], [true, false, true]);
        assert!(first(1, 60));
    }

    #[test]
    fn remembered_keys_are_bounded_and_make_room() {
        let mut warned = HashMap::new();
        let keys = 0..u128::try_from(KEYS_MAX).unwrap() + 5;
        assert!(keys.clone().all(|key| is_first(&mut warned, &warning(key, 60), Tick(0))));
        assert_eq!(warned.len(), KEYS_MAX);
        assert!(is_first(&mut warned, &warning(1 << 100, 120), Tick(60)));
        assert_eq!(warned.len(), 1);
    }
}
