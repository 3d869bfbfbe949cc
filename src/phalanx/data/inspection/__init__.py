"""How a `tf.data.Dataset` will be shared out, what that costs, and which traps it has."""
