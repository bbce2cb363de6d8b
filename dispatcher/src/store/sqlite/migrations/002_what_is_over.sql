-- Since when no webhook names it.
ALTER TABLE lanes ADD COLUMN left_at INTEGER;
CREATE INDEX webhooks_on ON webhooks (lane);
UPDATE lanes SET left_at = unixepoch() * 1000000
    WHERE NOT EXISTS (SELECT 1 FROM webhooks w WHERE w.lane = lanes.id);
CREATE INDEX lanes_left ON lanes (left_at) WHERE left_at IS NOT NULL;

ALTER TABLE mails ADD COLUMN over_at INTEGER;
UPDATE mails SET over_at = unixepoch() * 1000000 WHERE state > 1;
CREATE INDEX mails_over ON mails (over_at) WHERE over_at IS NOT NULL;

CREATE INDEX jobs_over ON jobs (ended_at) WHERE ended_at IS NOT NULL;
