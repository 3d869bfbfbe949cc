"""Local steps: workers train on their own, and synchronize their weights every so often.

With the weights of the last sync as the anchor, a sync adds up what each worker has changed,
weighed by its samples, in one packed all-reduce. The outer optimizer makes of it the next weights:

    delta = sum over workers of n_r / n * (anchor - weights_r)
    none:      weights = anchor - delta                  (the mean of the workers' weights)
    nesterov:  momentum = m * momentum + delta,  weights = anchor - rate * (delta + m * momentum)

The model's optimizer trains between syncs. Each worker has its own slots of it, which no sync
touches, as in DiLoCo (Douillard et al. 2023, https://arxiv.org/abs/2311.08105); where a `fit` ends,
all take their mean.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from phalanx.checkpoint.variable_names import optimizer_variables
from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.sync_options import SyncOptions
from phalanx.distributed.collectives import Collectives
from phalanx.distributed.desync.check import before_collective
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.errors import ConfigurationError
from phalanx.gradients.all_reduce import pack, unpack
from phalanx.gradients.nonfinite import NonFiniteGuard
from phalanx.monitoring.flight_recorder import flight
from phalanx.training.context import CallContext
from phalanx.training.step_function import StepFunction

_log = logging.getLogger(__name__)
_OUTER = "outer"


def sync_options() -> SyncOptions:
    """Those of this worker's run; training in step where there is no launcher."""
    spec = WorkerSpec.from_environment(os.environ)
    return SyncOptions() if spec is None else spec.sync


class LocalSteps:
    """When the workers of a training sync, and the state of their outer optimizer.

    One belongs to a step function and stays from one `fit` to the next.

    Attributes:
        options: what was asked for.
        weights: the variables that are synchronized, next to moving statistics.
        is_synced: whether all workers have the same weights now.
        found_nonfinite: whether the last sync found that some worker's gradient was not finite.
    """

    def __init__(self, stage: CallContext, function: StepFunction, options: SyncOptions) -> None:
        """Read the trainable variables of a model that is built."""
        self.options = options
        self.is_synced = True
        self.found_nonfinite = False
        self._model = stage.model
        self._function = function
        self._collectives: Collectives | None = getattr(stage.strategy, "collectives", None)
        self._has_peers = stage.place.has_peers
        self.weights: list[Any] = list(stage.model.trainable_variables)
        self._since = 0
        self._trained = 0
        self._anchors: list[tf.Tensor] = []
        self._moving: list[Any] = []
        self._exchange_trace: Any = None
        self._apply_trace: Any = None
        self._made_for: tuple[int, ...] = ()
        with tf.device(self._device):
            self._samples = tf.Variable([0, 0], dtype=tf.int64, trainable=False, name="samples")
        self.momentum: list[Any] = (
            [
                keras.Variable(tf.zeros(v.shape, v.dtype), trainable=False, name="outer_momentum")
                for v in self.weights
            ]
            if options.outer_optimizer == "nesterov"
            else []
        )

    @property
    def every(self) -> int:
        """Local steps from one sync to the next."""
        assert self.options.every is not None
        return self.options.every

    @property
    def steps_until_sync(self) -> int:
        """How many steps the next execution may have."""
        in_step = self.options.warmup - self._trained
        return in_step if in_step > 0 else self.every - self._since

    def variables(self) -> dict[str, Any]:
        """The state of the outer optimizer, the same on all workers, by name."""
        return {f"{_OUTER}/{i}": variable for i, variable in enumerate(self.momentum)}

    def own_variables(self) -> dict[str, Any]:
        """What each worker has of its own between syncs and after them, by name."""
        return optimizer_variables(self._model)

    def begin(self, trained: int) -> None:
        """Begin an epoch, in which all workers have the same weights.

        Args:
            trained: steps of this training so far.
        """
        self._trained, self._since = trained, 0
        self._choose()
        self._set_anchors()

    def after(self, done: int, *, is_last: bool) -> None:
        """Steps were trained: sync, if it is time; all workers must call it.

        Args:
            done: how many.
            is_last: whether an epoch ends here.
        """
        self._trained += done
        if self._function.is_local:
            self._since += done
            self.is_synced = False
            if self._since >= self.every or is_last:
                self.sync()
        elif self._choose():
            self._set_anchors()

    def sync(self) -> None:
        """Give all workers the same weights; all must call it after the same step."""
        if self._since == 0:
            return
        self._since, self.is_synced = 0, True
        assigned = self._function.assigned
        # What no step has assigned so far no step assigns: an anchor would be memory for nothing.
        kept = [id(v) in assigned for v in self._moving]
        if not all(kept):
            count = len(self.weights)
            anchors = [a for a, is_kept in zip(self._anchors[count:], kept, strict=True) if is_kept]
            self._anchors = [*self._anchors[:count], *anchors]
            self._moving = [v for v, is_kept in zip(self._moving, kept, strict=True) if is_kept]
        self._trace()
        before_collective("weights")
        with flight.collective("sync of the weights", self._bytes()):
            packs, flag = self._exchange_trace(self._anchors)
            self.found_nonfinite = bool(flag.numpy() > 0)
        guard = self._guard()
        if self.found_nonfinite and guard is not None and guard.policy == "raise":
            return
        self._anchors = self._apply_trace(self._anchors, packs)

    def end(self) -> None:
        """A `fit` ends: sync, and have all workers the mean of their optimizers' states.

        What is no number a weight, such as counts of steps and loss scales, is the chief's.
        """
        self.sync()
        if not self._has_peers or not self._function.is_local:
            return
        variables = list(self.own_variables().values())
        means = [v for v in variables if v.shape and str(v.dtype).startswith(("float", "bfloat"))]
        taken = {id(v) for v in means}
        others = [v for v in variables if id(v) not in taken and str(v.dtype) != "string"]
        before_collective("the optimizer's state")
        collectives: Any = self._collectives
        _averaged(collectives, means)
        with tf.device(self._device):
            values = collectives.broadcast([v.value for v in others])
        for variable, value in zip(others, values, strict=True):
            variable.assign(value)

    def _choose(self) -> bool:
        """Have the next steps be local ones, or in step; whether they are local."""
        is_local = self._trained >= self.options.warmup
        self._function.add_up(is_local=is_local, samples=self._samples if is_local else None)
        return is_local

    def _set_anchors(self) -> None:
        """Take the weights, which all workers share now, as the anchor; no value is copied yet."""
        self._samples.assign([0, 0])
        self._moving = self._moving_averages()
        self._anchors = [v.value.read_value() for v in [*self.weights, *self._moving]]

    @property
    def _device(self) -> str | None:
        return None if self._collectives is None else self._collectives.device

    def _guard(self) -> NonFiniteGuard | None:
        return self._function.extensions.get(NonFiniteGuard)

    def _moving_averages(self) -> list[Any]:
        """Moving statistics and other means, which a replica computes of its own samples."""
        metrics = {id(v) for metric in self._model.metrics for v in metric.variables}
        return [
            v
            for v in self._model.non_trainable_variables
            if id(v) not in metrics and v.dtype.startswith(("float", "bfloat"))
        ]

    def _bytes(self) -> int:
        entries = sum(math.prod(anchor.shape) for anchor in self._anchors)
        return int(entries * tf.as_dtype(self.options.wire_dtype).size)

    def _trace(self) -> None:
        guard = self._guard()
        made_for = (id(guard), *(id(v) for v in [*self.weights, *self._moving]))
        if made_for != self._made_for:
            self._made_for = made_for
            self._exchange_trace = tf.function(self._exchange, autograph=False)
            self._apply_trace = tf.function(self._apply, autograph=False)

    def _exchange(self, anchors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Add up: packs of differences by dtype, and on how many workers a gradient was bad."""
        with tf.device(self._device):
            own, total = tf.unstack(tf.cast(self._samples, tf.float64))
            share = tf.math.divide_no_nan(own, total)
            guard = self._guard()
            flag = tf.constant(False) if guard is None else guard.any_seen()
            differences = [
                tf.cast(tf.cast(share, anchor.dtype) * (anchor - v.value), self._wire(anchor))
                for anchor, v in zip(anchors, [*self.weights, *self._moving], strict=True)
            ]
            wires = list(dict.fromkeys(d.dtype for d in differences))
            packs = [pack([d for d in differences if d.dtype == wire]) for wire in wires]
            packs[0] = tf.concat([packs[0], [tf.cast(flag, wires[0])]], axis=0)
            if self._has_peers:
                assert self._collectives is not None
                packs = [self._collectives.all_reduce(one) for one in packs]
            self._samples.assign([0, 0])
            flags = packs[0][-1]
            packs[0] = packs[0][:-1]
            return packs, tf.cast(flags, tf.float32)

    def _apply(self, anchors: Sequence[tf.Tensor], packs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Assign the next weights, which are the next anchors."""
        with tf.device(self._device):
            wires = [self._wire(anchor) for anchor in anchors]
            deltas: list[Any] = [None] * len(anchors)
            for wire, packed in zip(dict.fromkeys(wires), packs, strict=True):
                places = [i for i, one in enumerate(wires) if one == wire]
                for i, part in zip(
                    places, unpack(packed, [anchors[i] for i in places]), strict=True
                ):
                    deltas[i] = tf.cast(part, anchors[i].dtype)
            variables = [*self.weights, *self._moving]
            return [
                self._updated(i, variable, anchor, delta)
                for i, (variable, anchor, delta) in enumerate(
                    zip(variables, anchors, deltas, strict=True)
                )
            ]

    def _updated(self, i: int, variable: Any, anchor: tf.Tensor, delta: tf.Tensor) -> tf.Tensor:
        if i < len(self.momentum):
            m = tf.cast(self.options.outer_momentum, anchor.dtype)
            momentum = m * self.momentum[i].value + delta
            self.momentum[i].assign(momentum)
            delta = tf.cast(self.options.outer_learning_rate, anchor.dtype) * (delta + m * momentum)
        value = anchor - delta
        constraint = getattr(variable, "constraint", None)
        value = value if constraint is None else tf.convert_to_tensor(constraint(value))
        variable.assign(value)
        return value

    def _wire(self, tensor: tf.Tensor) -> tf.DType:
        """The dtype in which differences of such a tensor travel."""
        wire = tf.as_dtype(self.options.wire_dtype)
        return tensor.dtype if wire == tf.float32 else wire


def local_steps_of(stage: CallContext, function: StepFunction) -> LocalSteps | None:
    """The local steps of a `fit`; None where it trains in step.

    Args:
        stage: where the call runs.
        function: its training steps, of a model that is built.

    Raises:
        ConfigurationError: the strategy or the data cannot have local steps.
    """
    options = sync_options()
    if not options.is_on:
        if function.is_local:
            function.add_up(is_local=False)
        return None
    check_local_steps(stage, function)
    kept = function.extensions.get(LocalSteps)
    weights = [id(v) for v in stage.model.trainable_variables]
    if kept is None or kept.options != options or [id(v) for v in kept.weights] != weights:
        kept = function.extensions[LocalSteps] = LocalSteps(stage, function, options)
    if stage.place.is_chief:
        _log.info(
            "workers train on their own and sync every %d steps%s, by %s",
            options.every,
            f" after {options.warmup} in step" if options.warmup else "",
            {"nesterov": "Nesterov momentum on the mean difference", "none": "the mean"}[
                options.outer_optimizer
            ],
        )
    found: LocalSteps = kept
    return found


def check_local_steps(stage: CallContext, function: StepFunction) -> None:
    """Refuse strategies and data with which workers cannot train on their own.

    Raises:
        ConfigurationError: says what to change.
    """
    strategy = stage.strategy
    is_plain = isinstance(strategy, MultiWorkerStrategy) or strategy.num_replicas_in_sync == 1
    if not is_plain or isinstance(strategy, tf.distribute.TPUStrategy):
        raise ConfigurationError(
            f"--sync-every {sync_options().every} is for workers with weights of their own; found "
            f"a {type(strategy).__name__}. Leave it out, or let phalanx run make the strategy."
        )
    if not function.plan.counted:
        raise ConfigurationError(
            f"--sync-every {sync_options().every} needs to know the samples of each global batch; "
            "found a distributed dataset. Give fit the dataset itself."
        )


def _averaged(collectives: Any, variables: Sequence[Any]) -> None:
    """Assign the mean over workers, in one all-reduce for each dtype."""
    for dtype in dict.fromkeys(str(v.dtype) for v in variables):
        chosen = [v for v in variables if str(v.dtype) == dtype]
        with tf.device(collectives.device):
            mean = collectives.all_reduce(pack([v.value for v in chosen]), mean=True)
            for variable, value in zip(
                chosen, unpack(mean, [v.value for v in chosen]), strict=True
            ):
                variable.assign(value)
