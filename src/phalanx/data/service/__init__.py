"""Batches that the servers of a `tf.data` service make, in the order that we would have made."""
