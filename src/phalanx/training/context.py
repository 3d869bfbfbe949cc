"""What `fit`, `evaluate` and `predict` do before their first step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from phalanx.data.adapt import make_batch_source
from phalanx.data.batch_iterator import BatchIterator
from phalanx.data.batches import BatchSource, size_of_all, with_rows
from phalanx.data.pipelines.error_policy import offending_sample
from phalanx.distributed.host_collectives import all_gather_arrays, all_gather_rows
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.distributed.topology import ReplicaTopology, topology_of
from phalanx.errors import ConfigurationError, WorkerMismatchError
from phalanx.keras_compat.atomic_writes import atomic_save_patch
from phalanx.keras_compat.building_steps import build_by_step
from phalanx.keras_compat.loss_patches import weighted_loss_patch
from phalanx.keras_compat.model_access import (
    adopt,
    build,
    has_own_step,
    replicates_variables,
    stateful_layers,
    strategy_of,
)
from phalanx.keras_compat.optimizer_patches import optimizers_reduce_first
from phalanx.keras_compat.variable_conversion import convert_variables_to_numbers
from phalanx.training.end_of_data import EndOfDataSync, UnevenInputs
from phalanx.training.first_batches import assert_same_first_batches
from phalanx.training.log_requirements import LogRequirements
from phalanx.training.step_function import Kind, StepFunction, StepPlan, step_function, step_of

PATCHES = (
    optimizers_reduce_first,
    weighted_loss_patch,
    atomic_save_patch,
    convert_variables_to_numbers,
)
"""What makes Keras right on several replicas, next to its own methods."""


class Batches(Protocol):
    """What a step function needs to know of its batches; see `BatchSource`."""

    @property
    def batch_spec(self) -> Any:
        """Shapes and dtypes of a global batch."""

    @property
    def counted(self) -> bool:
        """Whether elements are `(total, parts)`."""

    @property
    def may_be_empty(self) -> bool:
        """Whether a replica can be without samples."""

    @property
    def may_be_undivided(self) -> bool:
        """Whether the first replica can have all samples of a batch."""

    @property
    def full_batch_size(self) -> int | None:
        """Samples in every batch but the last of a pass, None where unknown."""

    @property
    def batch_size(self) -> int | None:
        """The same, where every such batch is known to have them."""

    @property
    def num_samples(self) -> int | None:
        """Samples in one pass, None where they are not counted."""

    @property
    def num_batches(self) -> int | None:
        """Global batches in one pass, None when unknown or endless."""


@dataclass(frozen=True, kw_only=True)
class CallContext:
    """Where a call runs: the model under its strategy, and this process's replicas.

    What `exit` is given is taken back where the call ends.
    """

    model: Any
    strategy: tf.distribute.Strategy
    topology: ReplicaTopology
    exit: ExitStack


@contextmanager
def call_context(model: Any) -> Iterator[CallContext]:
    """Prepare `model` for its strategy: Keras's steps and optimizers are patched."""
    strategy = strategy_of(model)
    with ExitStack() as stack:
        for patches in (*PATCHES, strategy.scope()):
            stack.enter_context(patches)
        adopt(model, strategy)
        topology = topology_of(strategy)
        if topology.has_peers and not isinstance(strategy, MultiWorkerStrategy):
            raise ConfigurationError(
                "Asked to train under TensorFlow's MultiWorkerMirroredStrategy with "
                f"{topology.workers} workers; Phalanx trains on several workers under its own. "
                'strategy = phalanx.strategy("multiworker"), or start the script by phalanx run.'
            )
        try:
            yield CallContext(model=model, strategy=strategy, topology=topology, exit=stack)
        except Exception as error:
            add_hint(error)
            if (invalid := offending_sample(error)) is not None:
                raise invalid from error
            raise


def open_source(
    stage: CallContext,
    call: str,
    seed: int | None,
    x: Any,
    y: Any,
    *,
    uneven: UnevenInputs = "error",
    **options: Any,
) -> BatchSource:
    """The global batches of the call, once all workers agree on what it is about.

    Raises:
        WorkerMismatchError: workers were given different data, models or arguments.
        DataError: the data is invalid.
    """
    source = _make_source(stage, x, y, seed=seed, **options)
    if uneven == "stop":
        _end_with_the_shortest(stage, source)
    first_batches = getattr(source, "first_batches", None)
    requirements = {
        "call": call,
        "number of samples": source.num_samples,
        "number of batches": source.num_batches,
        "knowledge of the data's end": not source.length_unknown,
        "use of a Python generator": first_batches is not None,
        "steps": options.get("steps"),
        "kind of data": keras.tree.flatten(source.batch_spec),
        "data": None if source.fingerprint is None else f"checksum {source.fingerprint:08x}",
        "model": [(v.path, tuple(v.shape)) for v in stage.model.trainable_variables],
    }
    agreed = assert_same_on_all_workers(stage.strategy, stage.topology, call, requirements, seed)
    if first_batches is not None:
        assert_same_first_batches(stage.strategy, stage.topology, call, first_batches)
    if agreed != seed:
        _close(source)  # a generator then gives its first batches again
        source = _make_source(stage, x, y, seed=agreed, **options)
        if uneven == "stop":
            _end_with_the_shortest(stage, source)
    return source


def _make_source(stage: CallContext, x: Any, y: Any, **options: Any) -> BatchSource:
    """The global batches, of which nothing is read any more once the call ends."""
    source = make_batch_source(x, y, topology=stage.topology, **options)
    stage.exit.callback(_close, source)
    return source


def _close(source: BatchSource) -> None:
    """Close a source that must be closed: that of a generator, which others read after it."""
    close = getattr(source, "close", None)
    if close is not None:
        close()


def _end_with_the_shortest(stage: CallContext, source: BatchSource) -> None:
    """Let a dataset of known length be as long as the shortest worker's."""
    length = source.num_batches if source.num_samples is None else None
    own = np.array([-1 if length is None else length], np.int64)
    if not stage.topology.has_peers:
        return
    lengths = all_gather_rows(stage.strategy, stage.topology, own)
    if (lengths >= 0).all():
        source.num_batches = int(lengths.min())


def make_function(
    stage: CallContext, kind: Kind, source: Batches, *, built: bool = False
) -> StepFunction:
    """The model's step function for such batches.

    Args:
        stage: where the call runs.
        kind: what the function is for.
        source: the batches.
        built: whether everything that the first step would make must exist now.
    """
    before = getattr(stage.model, f"{kind}_function")
    is_traced = isinstance(before, StepFunction) and before.is_traced
    # Keras's symbolic build can make no states of recurrent layers.
    by_step = has_own_step(stage.model, kind) or bool(stateful_layers(stage.model))
    size = size_of_all(source.batch_size, source.num_samples)
    static_spec = None if size is None else with_rows(source.batch_spec, size)
    if kind != "predict" and replicates_variables(stage.strategy) and not is_traced:
        if kind == "train" and by_step:
            build_by_step(
                step_of(stage.model, kind), static_spec or source.batch_spec, stage.strategy
            )
        else:
            build(stage.model, source.batch_spec, stage.strategy, static_spec)
        built = False
    plan = StepPlan(
        strategy=stage.strategy,
        topology=stage.topology,
        counted=source.counted,
        may_be_empty=source.may_be_empty and stage.topology.total > 1,
        may_be_undivided=source.may_be_undivided,
        known_length=source.num_batches is not None,
    )
    function = step_function(stage.model, kind, plan)
    function.take_batch_size(source.full_batch_size)
    if built and by_step:
        function.build(source.batch_spec, size)
    elif built:
        build(stage.model, source.batch_spec, stage.strategy, static_spec)
    return function


def make_stream(
    stage: CallContext, source: BatchSource, steps: int | None, uneven: UnevenInputs = "error"
) -> BatchIterator:
    """The source, to be walked epoch by epoch, all workers ending at the same step."""
    chunk = int(stage.model.steps_per_execution or 1)
    stream = BatchIterator(source, steps_per_epoch=steps, steps_per_execution=chunk)
    if stage.topology.has_peers and source.length_unknown:
        stream.ready = EndOfDataSync(stage.strategy, stage.topology, source, uneven)
    return stream


def broadcast_int(stage: CallContext, number: int) -> int:
    """The number that the chief gives; a collective that all workers must call."""
    if not stage.topology.has_peers:
        return number
    rows = all_gather_rows(stage.strategy, stage.topology, np.array([number], np.int64))
    return int(rows[0][0])


def gather_log_requirements(stage: CallContext, own: LogRequirements) -> LogRequirements:
    """What some worker asks to be read; a collective that all workers must call."""
    of_each = all_gather_arrays(stage.strategy, stage.topology, [own.to_array()])
    return LogRequirements.together([LogRequirements.from_array(rows) for (rows,) in of_each])


_ADVICE = {
    "handle is not available outside the replica": (
        "Phalanx: a tf.GradientTape in a callback, or elsewhere outside a step, cannot follow "
        "variables that several replicas hold. To see gradients, add "
        "phalanx.callbacks.GradientLogger; for a computation of your own, put it into "
        "strategy.run or train_step."
    ),
}
"""What a message holds, and what to do about it; docs/troubleshooting.md has the same."""


def add_hint(error: BaseException) -> None:
    """Add what is known about `error` to what it prints."""
    for part, advice in _ADVICE.items():
        if part in str(error) and advice not in getattr(error, "__notes__", ()):
            error.add_note(advice)


# Workers that were given data of different lengths, or models of different shapes, would
# hang in a collective or train something wrong. One small gather at the start of a call
# finds this, and the error names the workers that differ.

_UNKNOWN = -1


def assert_same_on_all_workers(
    strategy: tf.distribute.Strategy,
    topology: ReplicaTopology,
    call: str,
    requirements: Mapping[str, Any],
    seed: int | None,
) -> int | None:
    """Compare this worker's arguments with its peers', and take the chief's seed.

    Args:
        strategy: the strategy that the workers share.
        topology: this worker's replicas.
        call: "fit", "evaluate" or "predict", for the message.
        requirements: what must be the same on every worker, by name; integers are shown, any
            other value is compared by its text.
        seed: this worker's draw; None for the order that Keras draws.

    Returns:
        The chief's seed.

    Raises:
        WorkerMismatchError: a worker wants something else than the chief.
    """
    if not topology.has_peers:
        return seed
    mine = np.array([_as_integer(seed), *(_as_integer(w) for w in requirements.values())], np.int64)
    all_requirements = all_gather_rows(strategy, topology, mine)
    for column, name in enumerate(requirements, start=1):
        values = [int(row[column]) for row in all_requirements]
        if len(set(values)) > 1:
            raise WorkerMismatchError(_explain(call, name, values, requirements[name]))
    chiefs = int(all_requirements[0][0])
    return None if chiefs == _UNKNOWN else chiefs


def _as_integer(value: Any) -> int:
    if value is None:
        return _UNKNOWN
    if isinstance(value, (bool, int, np.integer)):
        return int(value)
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:6], "big")


def _explain(call: str, name: str, values: list[int], mine: Any) -> str:
    if isinstance(mine, (bool, int, np.integer)) or mine is None:
        shown = ", ".join(
            f"worker {rank}: {'unknown' if v == _UNKNOWN else v}" for rank, v in enumerate(values)
        )
    else:
        odd = [rank for rank, v in enumerate(values) if v != values[0]]
        shown = f"worker(s) {odd} differ from worker 0; here it is {mine!r}"
    return (
        f"{call} needs the same {name} on every worker; found {shown}. Give every worker the "
        "same global data (Phalanx hands each its share), model and arguments."
    )
