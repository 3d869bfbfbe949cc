"""The seed that `phalanx run` gives a worker."""

from __future__ import annotations


class LauncherSeed(int):
    """Distinguishable from a seed that the script sets: TensorFlow keeps the object it is given."""
