"""Collectives between worker processes, and the `tf.distribute.Strategy` over them."""
