-- A redelivery may name its deliveries, and can be cancelled. No row of a large table is written.
ALTER TABLE jobs ADD COLUMN named TEXT;
ALTER TABLE jobs ADD COLUMN examined INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN counted INTEGER;
ALTER TABLE jobs ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_of ON jobs (workspace, id);

-- The job that redelivered it last; null if none did, and in rows of version 6 and earlier.
ALTER TABLE deliveries ADD COLUMN job INTEGER;

-- What became of the deliveries of a job, by webhook.
CREATE TABLE job_webhooks (
    job INTEGER NOT NULL,
    webhook INTEGER NOT NULL,
    matching INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, webhook)
) STRICT, WITHOUT ROWID;
