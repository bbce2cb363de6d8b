-- Names of the field for what version 3 names otherwise. No row of a large table is written.
ALTER TABLE lanes RENAME TO endpoints;
ALTER TABLE endpoints RENAME COLUMN left_at TO unused_since;
DROP INDEX lanes_left;
CREATE INDEX endpoints_unused ON endpoints (unused_since) WHERE unused_since IS NOT NULL;

ALTER TABLE webhooks RENAME COLUMN lane TO endpoint;
ALTER TABLE webhooks RENAME COLUMN gone_up_to TO deleted_up_to;
DROP INDEX webhooks_gone;
CREATE INDEX webhooks_deleted ON webhooks (id) WHERE deleted_up_to IS NOT NULL;

ALTER TABLE attempts RENAME COLUMN lane TO endpoint;
ALTER TABLE events RENAME COLUMN needed_by TO delivery_refs;

UPDATE meta SET name = 'clean_shutdown' WHERE name = 'ended_in_order';
UPDATE meta SET name = 'unclean_shutdowns' WHERE name = 'cut_off';
