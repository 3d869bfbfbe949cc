"""Turn what `fit`, `evaluate` and `predict` take into data on every worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import tensorflow as tf

from phalanx.data.dataset_identity import DatasetIdentity
from phalanx.data.iterator_position import DataPosition
from phalanx.errors import DataError
from phalanx.keras_compat.data_adapters import adapt, arrays_of
from phalanx.keras_compat.tf_distribute import num_ps_workers
from phalanx.training.parameter_server.array_worker_data import ArraysOnWorkers
from phalanx.training.parameter_server.dataset_worker_data import made_datasets, shared_dataset


class WorkerData(Protocol):
    """Data on every worker.

    Attributes:
        steps: batches in one pass of all workers together, None where unknown.
        batch_spec: shapes and dtypes of a batch as fit's data, batch axis None.
        ends_by_worker: whether each worker's part of a pass ends for itself.
        identity: which data it is, as far as that is known.
    """

    steps: int | None
    batch_spec: Any
    ends_by_worker: bool
    identity: DatasetIdentity

    def on_workers(self, coordinator: Any) -> Any:
        """What a step takes its batch from, on every worker."""

    def ticket(self, position: int) -> int:
        """The input of a step that starts `position` steps into training."""

    def next_pass(self) -> None:
        """The pass under way has ended, or is left."""

    def position(self, *, batch: int, trained: int) -> DataPosition:
        """The position of training, while no step is under way, as every strategy can read it.

        Args:
            batch: batches of the epoch that are trained.
            trained: batches since training began.
        """

    def state(self) -> Mapping[str, Any] | None:
        """The state beyond `position`, as JSON; None if `position` is all of it."""

    def restore(self, position: DataPosition, state: Mapping[str, Any] | None) -> None:
        """Begin there; called before `on_workers`.

        Args:
            position: from `position`, or from a `fit` under another strategy.
            state: from `state`; None from another strategy.
        """

    def unreported(self) -> list[Any]:
        """Results of completed steps that the chief has not received; each is given once."""

    def is_news(self, worker: int, batch: int) -> bool:
        """Whether a worker's batch is reported for the first time, as it is now."""

    def with_batch(
        self, iterator: Any, ticket: Any, worker: Any, run: Callable[[Any, Any], Any]
    ) -> Any:
        """Run a step on a batch, `run(data, number)`; just the worker's number if it has none."""


def worker_data(strategy: Any, x: Any, y: Any, *, seed: int | None, **options: Any) -> WorkerData:
    """The data of one call; `options` are those of `phalanx.data.adapt.make_batch_source`.

    Raises:
        DataError: it cannot be made on every worker, or holds no sample.
    """
    workers = num_ps_workers(strategy)
    if isinstance(x, tf.data.Dataset):
        _reject_with(x, y, options)
        return shared_dataset(x, workers)
    if callable(x) and not hasattr(x, "__getitem__"):
        _reject_with(x, y, options)
        return made_datasets(x, workers)
    arrays = arrays_of(adapt(x, y, **options))
    if arrays is None:
        raise DataError(
            f"Asked to train under parameter-server on a {type(x).__name__}, which cannot be made "
            "on every worker. Pass arrays, a tf.data.Dataset, or a function of an input context "
            "that makes one."
        )
    if arrays.num_samples == 0:
        raise DataError("Asked to use arrays with 0 samples. Pass at least one sample.")
    return ArraysOnWorkers(arrays, seed)


def _reject_with(x: Any, y: Any, options: dict[str, Any]) -> None:
    given = {"y": y, **{k: options.get(k) for k in ("sample_weight", "class_weight")}}
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise DataError(
            f"Asked to use {', '.join(names)} next to a {type(x).__name__}, whose elements already "
            "are (x, y) or (x, y, sample_weight). Put them into the dataset."
        )
