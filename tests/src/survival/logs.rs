//! What the dispatcher says of its attempts, looked at for one thing that no receiver can see: that
//! an event has one delivery for each webhook, however often it was posted.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use super::judge::Verdict;

/// Reads the lines of all attempts. A line that was cut off by a kill is none.
pub(super) fn read(path: &Path, verdict: &mut Verdict) {
    let mut deliveries: HashMap<(String, String), String> = HashMap::new();
    let [mut lines, mut second] = [0_u64; 2];
    let file = BufReader::new(File::open(path).unwrap());
    for line in file.split(b'\n').map_while(Result::ok) {
        let Ok(line) = serde_json::from_slice::<Value>(&line) else { continue };
        let [event, webhook, delivery] =
            ["event", "webhook", "delivery"].map(|name| line[name].as_str().map(str::to_owned));
        let (Some(event), Some(webhook), Some(delivery)) = (event, webhook, delivery) else {
            continue;
        };
        lines += 1;
        let first = deliveries.entry((event, webhook)).or_insert_with(|| delivery.clone());
        if *first != delivery {
            second += 1;
            verdict.faults.push(format!("{first} and {delivery} are of one event and webhook"));
        }
    }
    verdict.figures.push(("attempts that the log tells of", lines));
    verdict.figures.push(("second deliveries of one event and webhook", second));
}
