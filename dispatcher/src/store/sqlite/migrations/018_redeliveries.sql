-- How often a delivery was redelivered: an attempt from before changes nothing by its failure.
ALTER TABLE deliveries ADD COLUMN redeliveries INTEGER NOT NULL DEFAULT 0;
