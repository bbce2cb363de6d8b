//! Reads a limit: its key, its values, and what it does with them.

use serde_json::json;
use weir_common::config::document::table::Table;
use weir_common::directory::values::{Values, ValuesError};

use crate::limit::warnings::WHOLE;
use crate::limit::{Quota, StoreFailure};
use crate::settings::RawLimit;
use crate::settings::limit_key::limit_key;

pub(super) fn limit(table: &mut Table<'_>) -> RawLimit {
    table.require("key");
    table.require("algorithm");
    let key = limit_key(table);
    let quota = quota(table);
    let enforced = table.choice(
        "mode",
        &[("enforce", true), ("observe", false)],
        "observe: logs and counts what it would refuse.",
    );
    let doc = "Whether the headers of responses may show it.";
    let shown = table.flag("headers", true, doc);
    let warn_at = warn_at(table);
    let choices = [
        ("local_share", StoreFailure::LocalShare),
        ("refuse", StoreFailure::Refuse),
        ("allow", StoreFailure::Allow),
    ];
    let doc = "While a shared store is away. local_share: each gateway admits its share. refuse: \
               503. allow: the limit is not checked.";
    let on_failure = table.choice("on_store_failure", &choices, doc);
    RawLimit { key, quota, enforced, shown, warn_at, on_failure }
}

/// The share of the allowance at which to warn, in millionths.
fn warn_at(table: &mut Table<'_>) -> u32 {
    let mut warn_at = 0;
    let shape = json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1});
    let doc = "At which share of the allowance to warn, as 0.8: a line in the log, a metric and a \
               call of warnings.url, once per window and key; of windows below a minute, once a \
               minute.";
    let _place = table.parsed("warn_at", doc, shape, |value| {
        let share = value.as_f64().filter(|share| *share > 0.0 && *share <= 1.0);
        let millionths = share.map(|share| (share * f64::from(WHOLE)).ceil());
        // At most a million, and above 0.
        let parsed = millionths.and_then(|millionths| format!("{millionths:.0}").parse().ok());
        warn_at = parsed.unwrap_or_default();
        if parsed.is_some() {
            Ok(())
        } else {
            Err("a share above 0 and at most 1, such as 0.8".to_owned())
        }
    });
    warn_at
}

/// Reads the values, and reports all that is wrong with them.
fn quota(table: &mut Table<'_>) -> Quota {
    let mut values = Values::read(table);
    loop {
        match values.over(None) {
            Ok(quota) => return quota,
            Err(error) => {
                report(table, error);
                values = values.repaired(error);
            }
        }
    }
}

fn report(table: &Table<'_>, error: ValuesError) {
    match error {
        // The missing algorithm, or a value of another type, is reported already.
        _ if !table.has("algorithm") => {}
        ValuesError::Nothing(_) => {}
        ValuesError::Missing(field, _) if table.has(field) => {}
        ValuesError::Missing(..) => table.fault(error.message()),
        ValuesError::Foreign(field, _) => table.fault_in(field, error.message()),
        ValuesError::TooMany(_) => table.fault_in("requests", error.message()),
    }
}
