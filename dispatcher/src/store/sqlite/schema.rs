//! The database's tables, in the order in which they came about, and what marks it as ours.
//!
//! Invariants:
//!
//! 1. A migration that has been released never changes; a change is one more at the end. Each is
//!    a transaction together with the number that says it was made.
//! 2. A database of somebody else's, or of a later version, is refused before it is written to.
//!
//! Times are microseconds since 1970. Deliveries' numbers come from `counters`, so that none is
//! ever given twice (`id_sequence`). What is dropped some day goes by steady time (`steady_clock`).

use rusqlite::{Connection, OptionalExtension};

/// Marks a SQLite file as ours: `weir` in ASCII.
pub(super) const APPLICATION_ID: i64 = 0x7765_6972;

/// Under this name: whether the last process recorded all it knew.
pub(super) const ENDED_IN_ORDER: &str = "ended_in_order";

/// Each makes the tables of one version into those of the next.
const MIGRATIONS: &[&str] = &[FIRST, WHAT_IS_OVER, ORDER_AND_AGE];

const FIRST: &str = "
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- How much there is, so that nobody has to count.
CREATE TABLE counters (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    waiting INTEGER NOT NULL,
    webhooks INTEGER NOT NULL,
    deliveries_made INTEGER NOT NULL,
    webhooks_made INTEGER NOT NULL
) STRICT;
INSERT INTO counters VALUES (1, 0, 0, 0, 0);

CREATE TABLE workspaces (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- The pace of an endpoint outlives the webhooks that name it.
CREATE TABLE lanes (
    id INTEGER PRIMARY KEY,
    url TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE webhooks (
    id INTEGER PRIMARY KEY,
    workspace INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    events INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    secret BLOB NOT NULL,
    secret_before BLOB,
    secret_before_until INTEGER,
    paused_at INTEGER,
    paused_total INTEGER NOT NULL DEFAULT 0,
    -- 0: any delivery probes; otherwise its number.
    probing INTEGER,
    reordering INTEGER NOT NULL DEFAULT 0,
    health TEXT NOT NULL,
    -- Of the last attempt.
    last_outcome TEXT,
    look_at INTEGER,
    -- Once it is deleted: the number of the newest delivery. The row goes when nothing waits.
    gone_up_to INTEGER
) STRICT;
CREATE INDEX webhooks_of ON webhooks (workspace, id) WHERE gone_up_to IS NULL;
CREATE INDEX webhooks_gone ON webhooks (id) WHERE gone_up_to IS NOT NULL;

CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    workspace INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    digest BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    -- Deliveries that need it.
    needed_by INTEGER NOT NULL,
    body BLOB NOT NULL,
    -- No workspace learns of another's, nor takes its names.
    UNIQUE (workspace, name)
) STRICT;
CREATE INDEX events_unneeded ON events (created_at) WHERE needed_by = 0;

CREATE TABLE deliveries (
    id INTEGER PRIMARY KEY,
    event INTEGER NOT NULL,
    webhook INTEGER NOT NULL,
    workspace INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    -- 0 waiting, 1 delivered, 2 failed_permanent.
    state INTEGER NOT NULL,
    due INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    step INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    first_attempt_at INTEGER,
    since INTEGER,
    paused_before INTEGER NOT NULL,
    ended_at INTEGER,
    -- Of the last attempt.
    last_outcome TEXT
) STRICT;
CREATE INDEX deliveries_ready ON deliveries (webhook, due, id) WHERE state = 0;
CREATE INDEX deliveries_tried ON deliveries (webhook) WHERE state = 0 AND step > 0;
CREATE INDEX deliveries_of ON deliveries (workspace, id);
CREATE INDEX deliveries_failed ON deliveries (workspace, id) WHERE state = 2;
CREATE INDEX deliveries_ended ON deliveries (state, ended_at) WHERE state > 0;

-- Rows come in the order in which attempts end.
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY,
    delivery INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    number INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    took INTEGER NOT NULL,
    outcome TEXT NOT NULL
) STRICT;
CREATE INDEX attempts_of ON attempts (delivery);

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    workspace INTEGER NOT NULL,
    state INTEGER,
    webhook INTEGER,
    kind INTEGER,
    since INTEGER,
    until INTEGER,
    created_at INTEGER NOT NULL,
    -- Looks at deliveries up to here, and has looked at those up to there.
    newest INTEGER NOT NULL,
    looked_to INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0,
    ended_at INTEGER
) STRICT;
CREATE INDEX jobs_open ON jobs (id) WHERE ended_at IS NULL;

-- A mail's text is kept until it is sent, its key for longer.
CREATE TABLE mails (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    recipient TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL,
    -- 0 to be sent, 1 taken, 2 sent, 3 given up, 4 lost: taken when the process ended.
    state INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    due INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX mails_due ON mails (due, id) WHERE state = 0;
CREATE INDEX mails_taken ON mails (id) WHERE state = 1;
";

/// When what is kept beside deliveries was last of use, so that it goes some day.
const WHAT_IS_OVER: &str = "
-- Since when no webhook names it.
ALTER TABLE lanes ADD COLUMN left_at INTEGER;
CREATE INDEX webhooks_on ON webhooks (lane);
UPDATE lanes SET left_at = unixepoch() * 1000000
    WHERE NOT EXISTS (SELECT 1 FROM webhooks w WHERE w.lane = lanes.id);
CREATE INDEX lanes_left ON lanes (left_at) WHERE left_at IS NOT NULL;

ALTER TABLE mails ADD COLUMN over_at INTEGER;
UPDATE mails SET over_at = unixepoch() * 1000000 WHERE state > 1;
CREATE INDEX mails_over ON mails (over_at) WHERE over_at IS NOT NULL;

CREATE INDEX jobs_over ON jobs (ended_at) WHERE ended_at IS NOT NULL;
";

/// Lists by webhook and time, retention by time that passed, several earlier secrets, and jobs that
/// take turns.
const ORDER_AND_AGE: &str = "
-- A list of a workspace is merged from those of its webhooks: no row of a deleted one is read.
DROP INDEX deliveries_of;
CREATE INDEX deliveries_of ON deliveries (webhook, created_at);
DROP INDEX deliveries_failed;
CREATE INDEX deliveries_failed ON deliveries (webhook, created_at) WHERE state = 2;

-- Steady time, which no clock sets: as of `steady_at` on the wall clock. 0: never written yet.
ALTER TABLE counters ADD COLUMN steady INTEGER NOT NULL DEFAULT 0;
ALTER TABLE counters ADD COLUMN steady_at INTEGER NOT NULL DEFAULT 0;
-- In steady time; null in rows of earlier versions, whose time of day stands in for it.
ALTER TABLE deliveries ADD COLUMN over_at INTEGER;
DROP INDEX deliveries_ended;
CREATE INDEX deliveries_ended ON deliveries (state, coalesce(over_at, ended_at)) WHERE state > 0;
ALTER TABLE events ADD COLUMN over_at INTEGER;
DROP INDEX events_unneeded;
CREATE INDEX events_unneeded ON events (coalesce(over_at, created_at)) WHERE needed_by = 0;
ALTER TABLE attempts ADD COLUMN over_at INTEGER;

-- Earlier secrets that still sign, newest first: [[until, in steady time, sealed, in hex], ...].
ALTER TABLE webhooks ADD COLUMN secrets_before TEXT;
UPDATE webhooks
    SET secrets_before = json_array(json_array(secret_before_until, lower(hex(secret_before))))
    WHERE secret_before IS NOT NULL AND secret_before_until IS NOT NULL;
ALTER TABLE webhooks DROP COLUMN secret_before;
ALTER TABLE webhooks DROP COLUMN secret_before_until;

-- Workspaces take turns. A job has looked at `at_webhook` up to here, at those before it wholly,
-- and in earlier versions at all deliveries up to the number `looked_to`.
ALTER TABLE jobs ADD COLUMN at_webhook INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN at_time INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN at_delivery INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN over_at INTEGER;
DROP INDEX jobs_open;
CREATE INDEX jobs_open ON jobs (workspace, id) WHERE ended_at IS NULL;
DROP INDEX jobs_over;
CREATE INDEX jobs_over ON jobs (coalesce(over_at, ended_at)) WHERE ended_at IS NOT NULL;
";

/// What a file turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing yet, or a version that we know: go on.
    Ours,
    /// Another program's database.
    Foreign,
    /// Made by a later version of this program.
    Newer {
        /// What it has.
        version: i64,
        /// The last that we know.
        known: i64,
    },
}

/// Looks at a database without writing to it.
pub(super) fn look(conn: &Connection) -> rusqlite::Result<Found> {
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let any = conn.query_row("SELECT 1 FROM sqlite_schema LIMIT 1", [], |_| Ok(())).optional()?;
    let known = MIGRATIONS.len() as i64;
    Ok(match (application, any) {
        (0, None) if version == 0 => Found::Ours,
        (APPLICATION_ID, _) if (0..=known).contains(&version) => Found::Ours,
        (APPLICATION_ID, _) => Found::Newer { version, known },
        _ => Found::Foreign,
    })
}

/// Brings the tables to the version that we know.
pub(super) fn migrate(conn: &mut Connection) -> rusqlite::Result<()> {
    let version: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for (number, sql) in (1..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= version) {
        let change = conn.transaction()?;
        change.execute_batch(sql)?;
        change.pragma_update(None, "application_id", APPLICATION_ID)?;
        change.pragma_update(None, "user_version", number)?;
        change.commit()?;
    }
    Ok(())
}

/// A value by its name.
pub(super) fn meta(conn: &Connection, name: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    conn.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0)).optional()
}

/// Keeps a value under a name.
pub(super) fn set_meta(conn: &Connection, name: &str, value: &[u8]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2";
    conn.execute(sql, (name, value)).map(|_| ())
}
