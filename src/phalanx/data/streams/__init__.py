"""Pipelines from files that are read from their start: who reads what, and in which order."""
