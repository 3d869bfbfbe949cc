"""Screens and pages about a run, made from its records: `phalanx watch`, `phalanx report`.

Nothing here imports TensorFlow or Keras, or writes a file.
"""
