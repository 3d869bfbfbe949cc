"""The state of a `tf.data` iterator as arrays: shuffle buffers, what was read ahead, seeds.

TensorFlow writes it with `tf.train.Checkpoint`; it goes through TensorFlow's own file system
in memory (`ram://`), so nothing touches a disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import CheckpointMismatchError

_places = itertools.count()
_SEED = b"num_random_samples"
"""The name under which TensorFlow's kernels write how many seeds they have drawn."""


def read_iterator(iterator: Any) -> dict[str, np.ndarray] | None:
    """The iterator's state; None where a part of it is Python's (a generator, a `py_function`).

    Costs the time and bytes of what the pipeline holds: a shuffle buffer of 10,000 images of
    150 kB is 1.5 GB.
    """
    prefix = _prefix()
    try:
        tf.train.Checkpoint(iterator=iterator).write(prefix)
    except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, ValueError):
        return None
    state = {}
    for file in tf.io.gfile.glob(f"{prefix}.*"):
        with tf.io.gfile.GFile(file, "rb") as stream:
            state[file.removeprefix(prefix)] = np.frombuffer(stream.read(), np.uint8)
        tf.io.gfile.remove(file)
    return state


def write_iterator(iterator: Any, state: Mapping[str, np.ndarray]) -> None:
    """Restore that state in a fresh iterator over the same pipeline.

    Raises:
        CheckpointMismatchError: the state is that of another pipeline.
    """
    prefix = _prefix()
    for suffix, content in state.items():
        with tf.io.gfile.GFile(prefix + suffix, "wb") as stream:
            stream.write(content.tobytes())
    try:
        tf.train.Checkpoint(iterator=iterator).read(prefix).assert_consumed()
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        raise CheckpointMismatchError(
            "Asked to continue a pass over a tf.data pipeline; the checkpoint has the state of "
            f"another pipeline ({error.message.splitlines()[0]}). Resume with "
            'Checkpoint(data="skip"), which reads the data again up to the position.'
        ) from error
    finally:
        for suffix in state:
            tf.io.gfile.remove(prefix + suffix)


def seeds_in(state: Mapping[str, np.ndarray]) -> int:
    """How many of the pipeline's shuffles and other random parts have their seed in there.

    A part that has given all it had is left out of the state, seed and all.
    """
    return sum(content.tobytes().count(_SEED) for content in state.values())


def _prefix() -> str:
    return f"ram://phalanx-iterator/{next(_places)}"
