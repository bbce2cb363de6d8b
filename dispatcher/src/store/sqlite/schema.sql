-- The whole schema, as a new database gets it. An older database comes to the same tables by the
-- steps in migrations/; a test compares the two. A change goes into both.
--
-- Times are microseconds since 1970. Columns `over_at`, `unused_since`, `drop_at` and `steady`, and the times
-- in `secrets_before`, are steady time (steady_clock.rs).

-- Single values by name: keys, marks, what the last process recorded.
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Totals, so that no statement counts rows; the newest numbers, so that none is given twice.
CREATE TABLE counters (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    waiting INTEGER NOT NULL,
    webhooks INTEGER NOT NULL,
    deliveries_made INTEGER NOT NULL,
    webhooks_made INTEGER NOT NULL,
    -- Steady time, as of `steady_at` on the wall clock. 0: never written yet.
    steady INTEGER NOT NULL DEFAULT 0,
    steady_at INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO counters VALUES (1, 0, 0, 0, 0, 0, 0);

CREATE TABLE workspaces (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- The types of events, deliveries and jobs. A code never changes its meaning.
CREATE TABLE event_types (
    code INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
INSERT INTO event_types VALUES (11, 'webhook.ping');

-- The rate limit of an endpoint outlives the webhooks that name it.
CREATE TABLE endpoints (
    id INTEGER PRIMARY KEY,
    url TEXT NOT NULL UNIQUE,
    -- Since when no webhook names it.
    unused_since INTEGER
) STRICT;
CREATE INDEX endpoints_unused ON endpoints (unused_since) WHERE unused_since IS NOT NULL;

CREATE TABLE webhooks (
    id INTEGER PRIMARY KEY,
    workspace INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    secret BLOB NOT NULL,
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
    deleted_up_to INTEGER,
    -- Other secrets that still sign, newest first: [[until, sealed, in hex, created at], ...].
    -- Without `until`, which is null then, one signs until it is removed.
    secrets_before TEXT,
    -- The names of event types, separated by spaces.
    subscribed TEXT NOT NULL DEFAULT '',
    description TEXT,
    -- An object of strings, in JSON.
    metadata TEXT,
    -- Custom headers, sealed.
    headers BLOB,
    -- Whether the answers of successful attempts are kept.
    all_answers INTEGER NOT NULL DEFAULT 0,
    -- Since when its owner has it disabled.
    disabled_at INTEGER,
    -- The owner's rate limit.
    requests_per_minute INTEGER,
    -- The seed of its Ed25519 key, sealed.
    signing_key BLOB,
    -- When `secret` was made. Null: it is not known.
    secret_created_at INTEGER,
    -- A client certificate and its key, sealed.
    client_certificate BLOB,
    -- Since when it waits for a new secret: the key that sealed the earlier ones is lost.
    secret_lost_at INTEGER
) STRICT;
CREATE INDEX webhooks_of ON webhooks (workspace, id) WHERE deleted_up_to IS NULL;
CREATE INDEX webhooks_on ON webhooks (endpoint);
CREATE INDEX webhooks_deleted ON webhooks (id) WHERE deleted_up_to IS NOT NULL;

-- When webhooks were sent nothing, paused or disabled: the latest ones of each.
CREATE TABLE stops (
    webhook INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    began_at INTEGER NOT NULL,
    PRIMARY KEY (webhook, ended_at)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    workspace INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    digest BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    -- How many deliveries send it.
    delivery_refs INTEGER NOT NULL,
    body BLOB NOT NULL,
    -- Null in rows of version 2 and earlier, whose time of day stands in for it; so below.
    over_at INTEGER,
    -- No workspace learns of another's, nor takes its names.
    UNIQUE (workspace, name)
) STRICT;
CREATE INDEX events_unneeded ON events (coalesce(over_at, created_at)) WHERE delivery_refs = 0;

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
    last_outcome TEXT,
    over_at INTEGER,
    -- Of the event; null for a ping, and in rows of version 5 and earlier.
    tenant TEXT,
    -- The job that redelivered it last; null if none did, and in rows of version 6 and earlier.
    job INTEGER,
    -- How often its schedule began anew: an attempt from before changes nothing by its failure.
    redeliveries INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX deliveries_ready ON deliveries (webhook, due, id) WHERE state = 0;
CREATE INDEX deliveries_tried ON deliveries (webhook) WHERE state = 0 AND step > 0;
-- A list of a workspace is merged from those of its webhooks: no row of a deleted one is read.
CREATE INDEX deliveries_of ON deliveries (webhook, created_at);
CREATE INDEX deliveries_failed ON deliveries (webhook, created_at) WHERE state = 2;
CREATE INDEX deliveries_ended ON deliveries (state, coalesce(over_at, ended_at)) WHERE state > 0;

-- Rows come in the order in which attempts end.
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY,
    delivery INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    number INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    took INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    over_at INTEGER,
    -- What it came across (trace.rs); null in rows of version 4 and earlier.
    trace BLOB,
    -- Of an attempt without a delivery: the limits in which it counts.
    webhook INTEGER,
    workspace INTEGER
) STRICT;
CREATE INDEX attempts_of ON attempts (delivery);

-- What was sent and answered in an attempt (transcript.rs); few attempts have a row. It goes before
-- its attempt does, whose number may be given again.
CREATE TABLE transcripts (
    attempt INTEGER PRIMARY KEY,
    webhook INTEGER NOT NULL,
    over_at INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;
CREATE INDEX transcripts_of ON transcripts (webhook);

-- Redeliveries by filter, or of named deliveries. Workspaces take turns.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    workspace INTEGER NOT NULL,
    state INTEGER,
    webhook INTEGER,
    kind INTEGER,
    since INTEGER,
    until INTEGER,
    created_at INTEGER NOT NULL,
    -- The number of the newest delivery when it was made.
    newest INTEGER NOT NULL,
    -- Of a job of version 2 or earlier: deliveries up to this number are done.
    looked_to INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0,
    ended_at INTEGER,
    -- Done: all deliveries of webhooks before `at_webhook`, and its own up to these two.
    at_webhook INTEGER NOT NULL DEFAULT 0,
    at_time INTEGER NOT NULL DEFAULT 0,
    at_delivery INTEGER NOT NULL DEFAULT 0,
    over_at INTEGER,
    event TEXT,
    tenant TEXT,
    outcome TEXT,
    status INTEGER,
    -- The numbers of its deliveries, ascending, as a JSON array; null if it has a filter.
    named TEXT,
    examined INTEGER NOT NULL DEFAULT 0,
    -- Whether `matching` below counts all matches; null if none were counted.
    counted INTEGER,
    cancelled INTEGER NOT NULL DEFAULT 0,
    -- The latest `created_at` of a delivery in its scope when it was made: its walk ends there.
    -- Null if its deliveries are named, and in rows of version 18 and earlier.
    newest_at INTEGER
) STRICT;
CREATE INDEX jobs_of ON jobs (workspace, id);
CREATE INDEX jobs_open ON jobs (workspace, id) WHERE ended_at IS NULL;
CREATE INDEX jobs_over ON jobs (coalesce(over_at, ended_at)) WHERE ended_at IS NOT NULL;

-- What became of the deliveries of a job, by webhook.
CREATE TABLE job_webhooks (
    job INTEGER NOT NULL,
    webhook INTEGER NOT NULL,
    -- Counted before the job began, up to a bound.
    matching INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0,
    -- Of those that no later redelivery has queued again: by their states.
    waiting INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, webhook)
) STRICT, WITHOUT ROWID;

-- A mail's text is kept until it is sent, its key for longer.
CREATE TABLE mails (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    -- An address; in state 5 a workspace.
    recipient TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL,
    -- 0 to be sent, 1 taken, 2 sent, 3 abandoned, 4 lost: taken when the process ended,
    -- 5 its recipients are to be found, 6 they were, and have mails of their own, 7 withdrawn.
    state INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    due INTEGER NOT NULL DEFAULT 0,
    over_at INTEGER,
    -- The webhook it is about.
    webhook INTEGER
) STRICT;
CREATE INDEX mails_due ON mails (due, id) WHERE state = 0;
CREATE INDEX mails_unaddressed ON mails (due, id) WHERE state = 5;
CREATE INDEX mails_taken ON mails (id) WHERE state = 1;
CREATE INDEX mails_over ON mails (over_at) WHERE over_at IS NOT NULL;
CREATE INDEX mails_of ON mails (webhook) WHERE over_at IS NULL;

-- Sessions of the dashboard.
CREATE TABLE sessions (
    -- The SHA-256 of what the cookie has.
    id BLOB PRIMARY KEY,
    -- The nonce of its link, which opens no second one. Null: it began with a token.
    link BLOB UNIQUE,
    workspace TEXT NOT NULL,
    -- Who may do what, in JSON (domain/session.rs).
    record TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0,
    -- When both it and its link have expired.
    drop_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_of ON sessions (workspace);
CREATE INDEX sessions_over ON sessions (drop_at);

-- How the attempts of a webhook ended, by hours since 1970; kept for two days.
CREATE TABLE activity (
    hour INTEGER NOT NULL,
    webhook INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    -- Statuses other than 2xx and 5xx.
    client_errors INTEGER NOT NULL,
    server_errors INTEGER NOT NULL,
    timeouts INTEGER NOT NULL,
    -- No connection: the name, the network, TLS.
    unreachable INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    -- How long they took: a histogram (domain/activity.rs).
    times BLOB NOT NULL,
    PRIMARY KEY (hour, webhook)
) STRICT, WITHOUT ROWID;
