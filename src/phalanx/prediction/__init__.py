"""`phalanx predict` and `phalanx evaluate`: a saved model on files, with several workers."""
