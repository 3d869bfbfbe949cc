"""Before each collective: do all workers bring the same? Asked under `phalanx run --debug`."""
