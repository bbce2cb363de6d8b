-- The event's tenant; null for a ping, and in rows of version 5 and earlier. No row is written.
ALTER TABLE deliveries ADD COLUMN tenant TEXT;

-- A redelivery selects by what a list selects by.
ALTER TABLE jobs ADD COLUMN event TEXT;
ALTER TABLE jobs ADD COLUMN tenant TEXT;
ALTER TABLE jobs ADD COLUMN outcome TEXT;
ALTER TABLE jobs ADD COLUMN status INTEGER;
