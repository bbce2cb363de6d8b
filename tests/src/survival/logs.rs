//! Reads the dispatcher's attempt log, for what no receiver can see: that an event has one delivery
//! for each webhook, however often it was posted; and which attempts timed out while the response
//! was on its way.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use super::cast::{DEADLINE, HOOKS};
use crate::timestamp;

/// A summary of the attempt log.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// The number of attempts.
    pub attempts: u64,
    /// Violations: a second delivery of one event and webhook.
    pub second: Vec<String>,
    /// The Unix seconds in which timed-out attempts began, by event and endpoint.
    pub timeouts: HashMap<(String, usize), Vec<u64>>,
}

/// Reads the attempt log; lines that a kill truncated are skipped. `webhooks` are in the order of
/// [`HOOKS`].
pub(super) fn read(path: &Path, webhooks: &[String]) -> Said {
    let mut said = Said::default();
    let mut deliveries: HashMap<(String, String), String> = HashMap::new();
    let file = BufReader::new(File::open(path).unwrap());
    for line in file.split(b'\n').map_while(Result::ok) {
        let Ok(line) = serde_json::from_slice::<Value>(&line) else { continue };
        let [event, webhook, delivery] =
            ["event", "webhook", "delivery"].map(|name| line[name].as_str().map(str::to_owned));
        let (Some(event), Some(webhook), Some(delivery)) = (event, webhook, delivery) else {
            continue;
        };
        said.attempts += 1;
        let took = line["duration_ms"].as_f64().unwrap_or(0.0);
        let hook = webhooks.iter().position(|known| *known == webhook);
        if let (Some(hook), "timeout") = (hook, line["outcome"].as_str().unwrap_or_default())
            && took >= DEADLINE.as_secs_f64() * 1_000.0
        {
            let began = timestamp::millis(line["time"].as_str().unwrap_or_default()) / 1_000;
            said.timeouts.entry((event.clone(), HOOKS[hook].1)).or_default().push(began);
        }
        let first = deliveries.entry((event, webhook)).or_insert_with(|| delivery.clone());
        if *first != delivery {
            said.second.push(format!("{first} and {delivery} have the same event and webhook"));
        }
    }
    said
}
