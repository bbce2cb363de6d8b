-- What owners set of their webhooks. No row is written.
ALTER TABLE webhooks ADD COLUMN description TEXT;
ALTER TABLE webhooks ADD COLUMN metadata TEXT;
ALTER TABLE webhooks ADD COLUMN headers BLOB;
ALTER TABLE webhooks ADD COLUMN all_answers INTEGER NOT NULL DEFAULT 0;
ALTER TABLE webhooks ADD COLUMN disabled_at INTEGER;
