-- Mails whose recipients are to be found: `state` is 5, and `recipient` a workspace.
CREATE INDEX mails_unaddressed ON mails (due, id) WHERE state = 5;
