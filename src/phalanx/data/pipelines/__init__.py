"""From a source to batches: order, reading, caching, and this worker's share."""
