"""What `benchmarks/strategies.py` runs and shows."""
