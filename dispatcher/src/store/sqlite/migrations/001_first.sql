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
