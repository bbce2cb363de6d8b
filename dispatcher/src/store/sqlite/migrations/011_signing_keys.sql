-- Ed25519 keys, sealed; and since when secrets sign, which is not known of those that were rotated.
ALTER TABLE webhooks ADD COLUMN signing_key BLOB;
ALTER TABLE webhooks ADD COLUMN secret_created_at INTEGER;
UPDATE webhooks SET secret_created_at = created_at WHERE secrets_before IS NULL;
