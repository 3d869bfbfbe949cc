"""Experiment trackers, fed from the event logs of a run: a file for each tracker.

`python -m phalanx.trackers` feeds one tracker while a run runs; `phalanx report --to` afterwards.
Nothing here imports TensorFlow or Keras.
"""
