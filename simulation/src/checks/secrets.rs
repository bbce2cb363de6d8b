//! The log of attempts names neither a secret, nor a body, nor a path.

use std::time::Duration;

use weir_common::log::json_lines::LineLog;

use crate::model::{SECRETS, violated};

/// Neither a secret, nor a body, nor a path stands in the log of attempts.
pub(crate) fn logged_nothing_secret(log: &LineLog) {
    let mut text = Vec::new();
    log.close(Duration::ZERO);
    log.write_out(&mut text);
    let text = String::from_utf8_lossy(&text);
    for secret in SECRETS {
        if let Some(line) = text.lines().find(|line| line.contains(secret)) {
            violated("secret in log", format!("`{secret}` stands in the log: {line}"));
        }
    }
}
