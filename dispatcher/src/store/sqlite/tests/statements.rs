//! What SQLite says of our statements: none goes through all there is, nor is planned anew.

use rusqlite::{Connection, StatementStatus};

use crate::store::sqlite::{
    deliveries, events, jobs, mails, open, queue, record, schema, sweep, webhooks,
};

/// All that reads or writes what there may be millions of.
const STATEMENTS: [&str; 29] = [
    deliveries::NEWEST,
    deliveries::NEWEST_FAILED,
    deliveries::THIS,
    deliveries::EVENT_NAME,
    deliveries::ATTEMPTS,
    deliveries::AHEAD,
    events::DIGEST,
    events::SUBSCRIBED,
    jobs::NEXT,
    jobs::NEXT_FAILED,
    jobs::OLDEST_OPEN,
    mails::DUE,
    mails::NEXT,
    queue::FIRST_DUE,
    queue::FIRST,
    queue::THIS,
    queue::TRIED,
    queue::STARTS,
    record::STATE,
    sweep::ENDED,
    sweep::UNNEEDED,
    sweep::GONE,
    sweep::WAITING,
    sweep::NOBODYS,
    webhooks::HOW_MANY,
    webhooks::ONE,
    webhooks::PAGE,
    "DELETE FROM attempts WHERE delivery = ?1",
    "UPDATE attempts SET delivery = ?2 WHERE delivery = ?1",
];

#[test]
fn no_statement_goes_through_all_there_is() {
    let mut conn = Connection::open_in_memory().unwrap();
    schema::migrate(&mut conn).unwrap();
    for sql in STATEMENTS {
        let mut query = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let mut rows = query.raw_query();
        while let Some(row) = rows.next().unwrap() {
            let step: String = row.get("detail").unwrap();
            // A partial index that holds nothing but what is asked for may be gone through.
            let narrow = step.contains("mails_due")
                || step.contains("jobs_open")
                || step.contains("webhooks_gone")
                || step.contains("SCAN (subquery");
            assert!(!step.contains("SCAN") || narrow, "{sql}\n{step}");
            assert!(!step.contains("TEMP B-TREE"), "{sql}\n{step}");
        }
    }
}

#[test]
fn no_statement_is_planned_anew_for_another_value() {
    let mut conn = Connection::open_in_memory().unwrap();
    open::prepare(&mut conn).unwrap();
    for sql in STATEMENTS {
        let mut query = conn.prepare(sql).unwrap();
        for value in 0..3 {
            for nth in 1..=query.parameter_count() {
                query.raw_bind_parameter(nth, value).unwrap();
            }
            let mut rows = query.raw_query();
            while rows.next().unwrap().is_some() {}
        }
        assert_eq!(query.get_status(StatementStatus::RePrepare), 0, "{sql}");
    }
}
