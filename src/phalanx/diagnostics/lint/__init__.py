"""Reading a script without running it: the known mistakes of training with many workers."""
