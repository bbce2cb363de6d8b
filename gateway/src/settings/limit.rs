//! Reads a limit: its key, its values, and what it does with them.

use weir_common::config::document::table::Table;
use weir_common::directory::values::{Values, ValuesError};

use crate::limit::Quota;
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
    RawLimit { key, quota, enforced, shown }
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
        ValuesError::Nothing(_) => {}
        ValuesError::Missing(field, _) if table.has(field) => {}
        ValuesError::Missing(..) => table.fault(error.message()),
        ValuesError::Foreign(field, _) => table.fault_in(field, error.message()),
        ValuesError::TooMany(_) => table.fault_in("requests", error.message()),
    }
}
