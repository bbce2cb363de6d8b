-- The rate limit that an owner sets. No row is written.
ALTER TABLE webhooks ADD COLUMN requests_per_minute INTEGER;
