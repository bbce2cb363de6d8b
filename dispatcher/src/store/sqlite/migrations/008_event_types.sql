-- Types of events have names, of which there may be more than the bits of a number.
CREATE TABLE event_types (
    code INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
INSERT INTO event_types VALUES
    (0, 'user.created'), (1, 'user.updated'), (2, 'user.deleted'),
    (3, 'session.started'), (4, 'session.ended'),
    (5, 'tenant.created'), (6, 'tenant.deleted'),
    (7, 'plan.changed'), (8, 'subscription.past_due'),
    (9, 'mau.threshold_warning'), (10, 'signups_blocked'),
    (11, 'webhook.ping');

ALTER TABLE webhooks ADD COLUMN subscribed TEXT NOT NULL DEFAULT '';
UPDATE webhooks SET subscribed = coalesce(
    (SELECT group_concat(name, ' ')
        FROM (SELECT name FROM event_types WHERE webhooks.events >> code & 1 ORDER BY code)),
    ''
);
ALTER TABLE webhooks DROP COLUMN events;
