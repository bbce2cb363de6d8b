//! SQLite's plans of our statements: none scans a whole table, none is replanned.

use std::sync::Arc;

use rusqlite::{Connection, StatementStatus};

use crate::store::sqlite::migrations::migrate;
use crate::store::sqlite::pragmas::{prepare, prepare_reader};
use crate::store::sqlite::tests::watch::Watch;
use crate::store::sqlite::tests::{Store, conformance, watched};

/// Statements that control transactions or set up a connection: they name no table.
const PLAIN: [&str; 6] = ["BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PRAGMA"];

/// Tables with few rows.
const SMALL: [&str; 3] = ["counters", "meta", "event_types"];

/// Scans that are allowed: of partial indexes with exactly the wanted rows, and of no table.
const NARROW: [&str; 7] = [
    "mails_due",
    "mails_unaddressed",
    "mails_taken",
    "jobs_open",
    "webhooks_deleted",
    "SCAN (subquery",
    "SCAN CONSTANT ROW",
];

/// Every statement that the store runs in the conformance tests.
fn statements() -> Vec<String> {
    let watch = Watch::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(conformance::all(|| {
        let (folder, store) = watched(&watch);
        (folder, Arc::new(store) as Arc<dyn Store>)
    }));
    let seen = watch.drain().into_keys();
    let plain = |sql: &String| PLAIN.iter().any(|word| sql.starts_with(word));
    seen.filter(|sql| !plain(sql)).collect()
}

fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let mut query = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut rows = query.raw_query();
    let mut steps = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        steps.push(row.get("detail").unwrap());
    }
    steps
}

fn scans_all(step: &str) -> bool {
    let narrow = NARROW.iter().any(|name| step.contains(name));
    let small = SMALL.iter().any(|name| step.contains(name));
    step.contains("TEMP B-TREE") || (step.contains("SCAN") && !narrow && !small)
}

#[test]
fn no_statement_scans_a_whole_table() {
    let mut conn = Connection::open_in_memory().unwrap();
    migrate(&mut conn).unwrap();
    let all = statements();
    assert!(all.len() > 60, "the store has more statements than {all:#?}");
    for table in ["events", "deliveries", "attempts", "webhooks", "jobs", "mails", "endpoints"] {
        assert!(all.iter().any(|sql| sql.contains(table)), "nothing is asked of {table}");
    }
    for sql in all {
        for step in plan(&conn, &sql) {
            assert!(!scans_all(&step), "{sql}\n{step}");
        }
    }
}

#[test]
fn a_scan_and_a_sort_are_seen() {
    let mut conn = Connection::open_in_memory().unwrap();
    migrate(&mut conn).unwrap();
    for sql in [
        "SELECT count(*) FROM deliveries WHERE state = 0",
        "DELETE FROM events WHERE created_at < 1",
        "SELECT id FROM deliveries WHERE workspace = 1 ORDER BY created_at LIMIT 1",
        "SELECT id FROM attempts WHERE endpoint = 1",
    ] {
        let steps = plan(&conn, sql);
        assert!(steps.iter().any(|step| scans_all(step)), "{sql}\n{steps:?}");
    }
}

#[test]
fn no_statement_is_replanned_for_another_value() {
    let [mut writer, mut reader] = [(); 2].map(|()| Connection::open_in_memory().unwrap());
    prepare(&mut writer).unwrap();
    migrate(&mut reader).unwrap();
    prepare_reader(&reader).unwrap();
    let statements = statements();
    let of = |conn| statements.iter().map(move |sql| (conn, sql));
    for (conn, sql) in of(&writer).chain(of(&reader)) {
        let mut query = conn.prepare(sql).unwrap();
        for value in 0..3 {
            for nth in 1..=query.parameter_count() {
                query.raw_bind_parameter(nth, value).unwrap();
            }
            let mut rows = query.raw_query();
            // The values may violate a constraint; the statement was planned anyway.
            while matches!(rows.next(), Ok(Some(_))) {}
        }
        assert_eq!(query.get_status(StatementStatus::RePrepare), 0, "{sql}");
    }
}
