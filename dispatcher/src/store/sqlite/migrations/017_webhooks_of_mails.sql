-- The webhook that a mail is about: for what takes its place, and for turns between workspaces.
ALTER TABLE mails ADD COLUMN webhook INTEGER;
CREATE INDEX mails_of ON mails (webhook) WHERE over_at IS NULL;
