-- The latest created_at of a delivery in the scope of a job when it was made: where its walk ends.
ALTER TABLE jobs ADD COLUMN newest_at INTEGER;
