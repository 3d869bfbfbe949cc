"""Inside a worker process: devices, strategy, signals, and the user's script."""
