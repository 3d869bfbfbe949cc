"""One computing thread for TensorFlow, as the cores are given out one a process."""

from __future__ import annotations

import tensorflow as tf


def limit_tensorflow() -> None:
    """As `phalanx run --threads-per-worker 1` does.

    The second inter-op thread only waits: a collective must not hold up what its peer
    waits for.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
