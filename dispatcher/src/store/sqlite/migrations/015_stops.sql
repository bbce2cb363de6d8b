-- When webhooks were sent nothing, for the time line of a delivery.
CREATE TABLE stops (
    webhook INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    began_at INTEGER NOT NULL,
    PRIMARY KEY (webhook, ended_at)
) STRICT, WITHOUT ROWID;
