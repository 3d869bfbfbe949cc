"""Start workers, watch them, stop them, and say why they failed. No TensorFlow in this room."""
