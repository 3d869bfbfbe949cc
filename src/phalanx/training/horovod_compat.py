"""`model.fit` and similar as scripts made for Horovod mean them.

Such a script gives every process its own data, of which each batch is that process's. So the
global batch is what all processes hold together, and what a script evaluates or predicts
concerns its own process alone; it may do so on one process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.distributed.datasets import ShardedDataset, pad_to_longest
from phalanx.distributed.host_collectives import all_gather_rows
from phalanx.distributed.strategy import uses_horovod
from phalanx.distributed.topology import topology_of
from phalanx.errors import ConfigurationError
from phalanx.horovod.import_hook import PostImportHook
from phalanx.horovod.library import is_installed
from phalanx.keras_compat.data_adapters import adapt, split_validation
from phalanx.keras_compat.horovod_compat import horovod_scripts, is_distributed
from phalanx.keras_compat.model_access import without_strategy
from phalanx.keras_compat.patches import Patches
from phalanx.training.batch_methods import predict_on_batch, test_on_batch
from phalanx.training.evaluate import evaluate
from phalanx.training.fit import fit
from phalanx.training.predict import predict

_ALONE = (evaluate, predict, test_on_batch, predict_on_batch)


class HorovodScripts:
    """Puts Horovod's own interface right, when a script imports it, until it is left."""

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self._watching: PostImportHook | None = None
        self._entered: list[Patches] = []

    def __enter__(self) -> HorovodScripts:
        if is_installed():
            self._watching = PostImportHook("horovod._keras", self._put_on)
            self._watching.watch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.stop()
        while self._entered:
            self._entered.pop().__exit__()

    def _put_on(self) -> None:
        for patches in (horovod_scripts, _methods):
            patches.__enter__()
            self._entered.append(patches)


def _replacements() -> Mapping[tuple[Any, str], Any]:
    if not uses_horovod(tf.distribute.get_strategy()):
        return {}
    made: dict[tuple[Any, str], Any] = {
        (keras.Model, method.__name__): _alone(method) for method in _ALONE
    }
    return {**made, (keras.Model, "fit"): _fit_own_data}


_methods = Patches(_replacements)


def _alone(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` on this process's data, where the script's optimizer is Horovod's."""

    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_distributed(getattr(model, "optimizer", None)):
            return method(model, *args, **kwargs)
        with _leaving_the_strategy(model):
            return method(model, *args, **kwargs)

    call.__name__ = method.__name__
    return call


def _fit_own_data(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    *args: Any,
    **options: Any,
) -> Any:
    """`fit`, where every process passes its own batches."""
    if not is_distributed(getattr(model, "optimizer", None)):
        return fit(model, x, y, batch_size, *args, **options)
    if args:
        raise ConfigurationError(
            f"Asked to fit with {3 + len(args)} arguments by position; under Horovod name those "
            "after batch_size."
        )
    x, y, options = _split_off_validation(x, y, options)
    own = _own_part(
        x,
        y,
        sample_weight=options.pop("sample_weight", None),
        batch_size=batch_size,
        steps=options.get("steps_per_epoch"),
        shuffle=options.pop("shuffle", True),
        class_weight=options.pop("class_weight", None),
    )
    held_out = options.pop("validation_data", None)
    if held_out is not None:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(held_out)
        options["validation_data"] = _own_part(
            x,
            y,
            sample_weight=weight,
            batch_size=options.pop("validation_batch_size", None) or batch_size,
            steps=options.get("validation_steps"),
        )
    return fit(model, own, **options)


def _split_off_validation(
    x: Any, y: Any, options: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    share = options.pop("validation_split", 0.0)
    if not share or options.get("validation_data") is not None:
        return x, y, options
    arrays = (x, y, options.get("sample_weight"))
    (x, y, weight), held_out = split_validation(arrays, share)
    return x, y, {**options, "sample_weight": weight, "validation_data": held_out}


def _own_part(x: Any, y: Any, *, shuffle: Any = False, **options: Any) -> ShardedDataset:
    """This process's batches, as Keras would make them of what `fit` takes."""
    if isinstance(x, tf.data.Dataset):
        shuffle = False  # as in Keras: the dataset's order is its own
    adapter = adapt(x, y, shuffle=shuffle, **options)
    dataset, length = adapter.get_tf_dataset(), adapter.num_batches
    strategy = tf.distribute.get_strategy()
    own = np.array([-1 if length is None else length], np.int64)
    lengths = all_gather_rows(strategy, topology_of(strategy), own)
    if length is None or lengths.min() < 0:
        return ShardedDataset(dataset)
    return pad_to_longest(dataset, length, int(lengths.max()))


@contextmanager
def _leaving_the_strategy(model: Any) -> Iterator[None]:
    """As on one device, for what a process does on its own."""
    strategy = tf.distribute.get_strategy()
    tf.distribute.experimental_set_strategy(None)
    try:
        with without_strategy(model):
            yield
    finally:
        tf.distribute.experimental_set_strategy(strategy)
