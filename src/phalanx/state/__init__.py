"""What the state of a training is: a model, its optimizer, callbacks and chance as named arrays."""
