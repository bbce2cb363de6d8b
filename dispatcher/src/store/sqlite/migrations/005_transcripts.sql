-- What an attempt came across (trace.rs); null in rows of earlier versions. No row is written.
ALTER TABLE attempts ADD COLUMN trace BLOB;

-- What was sent and answered in an attempt (transcript.rs). Rows come in the order of attempts; a row
-- goes before its attempt does, whose number may be given again.
CREATE TABLE transcripts (
    attempt INTEGER PRIMARY KEY,
    webhook INTEGER NOT NULL,
    -- In steady time.
    over_at INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;
CREATE INDEX transcripts_of ON transcripts (webhook);
