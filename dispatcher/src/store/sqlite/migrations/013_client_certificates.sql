-- Client certificates of webhooks with their keys, sealed.
ALTER TABLE webhooks ADD COLUMN client_certificate BLOB;
