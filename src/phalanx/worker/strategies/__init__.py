"""One file for each strategy: how it is made in a worker."""
