"""What is wrong with data for a TPU: shapes that change, dtypes that it has not."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.doctor.finding import Finding

_SHAPES = (
    "A TPU compiles the step for one set of shapes, and again for each other: pad or cut to one."
)


def findings_in_data(adapter: Any, spec: Any) -> list[Finding]:
    """What is wrong with the batches of one of Keras's data adapters.

    Args:
        adapter: what gives the batches.
        spec: their shapes and dtypes.
    """
    found = _partial_batches(adapter, spec)
    for path, one in keras.tree.flatten_with_path(spec):
        name = "x" if not path or path[0] == 0 else "y"
        if not isinstance(one, tf.TensorSpec):
            found.append(
                Finding(what=f"The data's {name} is a {type(one).__name__}.", mend=_SHAPES)
            )
            continue
        if one.shape.rank is None or None in one.shape[1:]:
            found.append(
                Finding(what=f"The data's {name} has the shape {one.shape}.", mend=_SHAPES)
            )
        if one.dtype == tf.string:
            found.append(
                Finding(
                    what=f"The data's {name} are strings, which a TPU has not.",
                    mend="Turn them into numbers in the dataset: map(lookup).",
                )
            )
        if one.dtype == tf.float64:
            found.append(
                Finding(
                    what=f"The data's {name} is float64, which a TPU has not.",
                    mend="Cast it to float32.",
                )
            )
    return found


def batch_size_of(adapter: Any, spec: Any) -> int | None:
    """Samples in a whole batch; None where nobody knows."""
    first = keras.tree.flatten(spec)[0]
    static = first.shape[0] if isinstance(first, tf.TensorSpec) and first.shape.rank else None
    size = static or adapter.batch_size
    return int(size) if size else None


def _partial_batches(adapter: Any, spec: Any) -> list[Finding]:
    size = batch_size_of(adapter, spec)
    last = adapter.partial_batch_size
    if last:
        return [
            Finding(
                what=f"The last batch has {last} samples, the others have {size}.",
                mend="A TPU compiles the step anew for it: use a batch size that divides the "
                "number of samples, or a dataset with drop_remainder=True.",
            )
        ]
    if isinstance(adapter.get_tf_dataset(), tf.data.Dataset) and size is None:
        return [
            Finding(
                what="The dataset's batches may differ in size.",
                mend="Batch it with drop_remainder=True: a TPU compiles the step for one size.",
            )
        ]
    return []
