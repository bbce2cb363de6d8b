-- Webhooks whose secrets were lost with the key that sealed them wait for new ones.
ALTER TABLE webhooks ADD COLUMN secret_lost_at INTEGER;
