"""Who am I, and who are the others? No TensorFlow in this room."""
