-- A list of a workspace is merged from those of its webhooks: no row of a deleted one is read.
DROP INDEX deliveries_of;
CREATE INDEX deliveries_of ON deliveries (webhook, created_at);
DROP INDEX deliveries_failed;
CREATE INDEX deliveries_failed ON deliveries (webhook, created_at) WHERE state = 2;

-- Steady time, which no clock sets: as of `steady_at` on the wall clock. 0: never written yet.
ALTER TABLE counters ADD COLUMN steady INTEGER NOT NULL DEFAULT 0;
ALTER TABLE counters ADD COLUMN steady_at INTEGER NOT NULL DEFAULT 0;
-- In steady time; null in rows of earlier versions, whose time of day stands in for it.
ALTER TABLE deliveries ADD COLUMN over_at INTEGER;
DROP INDEX deliveries_ended;
CREATE INDEX deliveries_ended ON deliveries (state, coalesce(over_at, ended_at)) WHERE state > 0;
ALTER TABLE events ADD COLUMN over_at INTEGER;
DROP INDEX events_unneeded;
CREATE INDEX events_unneeded ON events (coalesce(over_at, created_at)) WHERE needed_by = 0;
ALTER TABLE attempts ADD COLUMN over_at INTEGER;

-- Earlier secrets that still sign, newest first: [[until, in steady time, sealed, in hex], ...].
ALTER TABLE webhooks ADD COLUMN secrets_before TEXT;
UPDATE webhooks
    SET secrets_before = json_array(json_array(secret_before_until, lower(hex(secret_before))))
    WHERE secret_before IS NOT NULL AND secret_before_until IS NOT NULL;
ALTER TABLE webhooks DROP COLUMN secret_before;
ALTER TABLE webhooks DROP COLUMN secret_before_until;

-- Workspaces take turns. A job has looked at `at_webhook` up to here, at those before it wholly,
-- and in earlier versions at all deliveries up to the number `looked_to`.
ALTER TABLE jobs ADD COLUMN at_webhook INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN at_time INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN at_delivery INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN over_at INTEGER;
DROP INDEX jobs_open;
CREATE INDEX jobs_open ON jobs (workspace, id) WHERE ended_at IS NULL;
DROP INDEX jobs_over;
CREATE INDEX jobs_over ON jobs (coalesce(over_at, ended_at)) WHERE ended_at IS NOT NULL;
