-- Of an attempt without a delivery: the limits in which it counts.
ALTER TABLE attempts ADD COLUMN webhook INTEGER;
ALTER TABLE attempts ADD COLUMN workspace INTEGER;
