//! Migrates a database to the schema of this program: a new one at once, an older one in steps.
//!
//! # Invariants
//!
//! 1. A released migration never changes (`tests` has its fingerprint). A change of the schema is a
//!    new file at the end, and the same change in `schema.sql`.
//! 2. Each step and its new version number are one transaction: a process that is killed meanwhile
//!    leaves a database of one version or of the next.
//!
//! Not here: the refusal of foreign and newer databases, which comes first (`schema`).

use log::Level;
use rusqlite::Connection;
use weir_common::log::events;

/// Marks a SQLite file as ours: `weir` in ASCII.
pub(super) const APPLICATION_ID: i64 = 0x7765_6972;

/// Each changes the tables of one version to those of the next; the first creates version 1.
pub(super) const MIGRATIONS: [&str; 20] = [
    include_str!("migrations/001_first.sql"),
    include_str!("migrations/002_what_is_over.sql"),
    include_str!("migrations/003_order_and_age.sql"),
    include_str!("migrations/004_plain_words.sql"),
    include_str!("migrations/005_transcripts.sql"),
    include_str!("migrations/006_finding.sql"),
    include_str!("migrations/007_progress_of_jobs.sql"),
    include_str!("migrations/008_event_types.sql"),
    include_str!("migrations/009_webhook_options.sql"),
    include_str!("migrations/010_owner_rate.sql"),
    include_str!("migrations/011_signing_keys.sql"),
    include_str!("migrations/012_dashboard.sql"),
    include_str!("migrations/013_client_certificates.sql"),
    include_str!("migrations/014_lost_secrets.sql"),
    include_str!("migrations/015_stops.sql"),
    include_str!("migrations/016_unaddressed_mails.sql"),
    include_str!("migrations/017_webhooks_of_mails.sql"),
    include_str!("migrations/018_redeliveries.sql"),
    include_str!("migrations/019_ends_of_jobs.sql"),
    include_str!("migrations/020_starts_without_deliveries.sql"),
];

/// The tables of the last version.
const SCHEMA: &str = include_str!("schema.sql");

/// The version that this program works with.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// The names of the tables of [`VERSION`].
pub(super) fn tables() -> impl Iterator<Item = &'static str> {
    let name = |line: &'static str| line.strip_prefix("CREATE TABLE ")?.split(' ').next();
    SCHEMA.lines().filter_map(name)
}

/// Migrates the tables to [`VERSION`].
pub(super) fn migrate(conn: &mut Connection) -> rusqlite::Result<()> {
    let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found == 0 {
        return step(conn, SCHEMA, VERSION);
    }
    for (version, sql) in (1..).zip(MIGRATIONS).skip_while(|(version, _)| *version <= found) {
        step(conn, sql, version)?;
        let fields = [("version", version.into()), ("found", found.into())];
        events::event(Level::Info, "database schema migrated", &fields);
    }
    Ok(())
}

fn step(conn: &mut Connection, sql: &str, version: i64) -> rusqlite::Result<()> {
    let change = conn.transaction()?;
    change.execute_batch(sql)?;
    change.pragma_update(None, "application_id", APPLICATION_ID)?;
    change.pragma_update(None, "user_version", version)?;
    change.commit()
}
