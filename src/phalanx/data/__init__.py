"""Sources to one global order, and from there to this worker's share of each batch."""
