"""Compares the tensors of all workers before each collective, under `phalanx run --debug`."""
