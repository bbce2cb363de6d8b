-- What the dashboard needs: its sessions, and how attempts ended, by the hour.
CREATE TABLE sessions (
    id BLOB PRIMARY KEY,
    link BLOB UNIQUE,
    workspace TEXT NOT NULL,
    record TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0,
    drop_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_of ON sessions (workspace);
CREATE INDEX sessions_over ON sessions (drop_at);
CREATE TABLE activity (
    hour INTEGER NOT NULL,
    webhook INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    client_errors INTEGER NOT NULL,
    server_errors INTEGER NOT NULL,
    timeouts INTEGER NOT NULL,
    unreachable INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    times BLOB NOT NULL,
    PRIMARY KEY (hour, webhook)
) STRICT, WITHOUT ROWID;
