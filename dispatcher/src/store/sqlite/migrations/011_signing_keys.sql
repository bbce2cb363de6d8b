-- Ed25519 keys, sealed. No row is written.
ALTER TABLE webhooks ADD COLUMN signing_key BLOB;
