"""`fit`, `evaluate` and `predict`, right under every synchronous strategy."""
