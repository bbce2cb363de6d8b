//! Checks that the log of attempts contains no secret, no body and no path.

use std::time::Duration;

use weir_common::log::json_lines::LineLog;

use crate::model::{SECRETS, violated};

/// Checks the log of attempts, and closes it.
pub(crate) fn logged_nothing_secret(log: &LineLog) {
    let mut text = Vec::new();
    log.close(Duration::ZERO);
    log.write_out(&mut text);
    let text = String::from_utf8_lossy(&text);
    for secret in SECRETS {
        if let Some(line) = text.lines().find(|line| line.contains(secret)) {
            violated("secret in log", format!("the attempt log contains `{secret}`: {line}"));
        }
    }
}
