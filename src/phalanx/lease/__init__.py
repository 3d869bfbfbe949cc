"""One owner for a directory that several processes can write to. No TensorFlow."""
