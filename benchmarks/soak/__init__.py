"""Faults drawn at random over a small training that must bear them."""
