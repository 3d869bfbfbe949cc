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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.checkpoint.variable_names import optimizer_variables
from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.sync_options import SyncOptions
from phalanx.distributed.background_sum import BackgroundSum
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
        may_exchange: whether all workers are at the same sync, and may call a collective.
        found_nonfinite: whether the last sync found that some worker's gradient was not finite.
    """

    def __init__(self, stage: CallContext, function: StepFunction, options: SyncOptions) -> None:
        """Read the trainable variables of a model that is built."""
        self.options = options
        self.is_synced = self.may_exchange = True
        self.found_nonfinite = False
        self._model = stage.model
        self._function = function
        self._collectives: Collectives | None = getattr(stage.strategy, "collectives", None)
        self._has_peers = stage.topology.has_peers
        self.weights: list[Any] = list(stage.model.trainable_variables)
        self._since = 0
        self._trained = 0
        self._moving: list[Any] = []
        self._anchors: list[tf.Tensor] = []
        self._traces: dict[Any, Any] = {}
        self._guard_of_traces: Any = None
        with tf.device(self._device):
            self._samples = tf.Variable([0, 0], dtype=tf.int64, trainable=False, name="samples")
        self._no_samples = tf.constant([0, 0], tf.int64)
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
        return in_step if in_step > 0 else self._steps_until_event()

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
        self._trained = trained
        self._choose()
        self._start_round()

    def after(self, done: int, *, is_last: bool) -> None:
        """Steps were trained: sync, if it is time; all workers must call it.

        Args:
            done: how many.
            is_last: whether an epoch ends here.
        """
        self._trained += done
        self.found_nonfinite = False
        if not self._function.is_local:
            if self._choose():
                self._start_round()
            return
        self._since += done
        self.is_synced = self.may_exchange = False
        self._forget_unassigned()
        self._act()
        if is_last:
            self.sync()

    def sync(self) -> None:
        """Give all workers the same weights; all must call it after the same step."""
        if self._since == 0:
            return
        self.is_synced = self.may_exchange = True
        self._forget_unassigned()
        places = tuple(range(len(self._anchors)))
        packs = self._added_up(places, self._differences_of(places, self._no_samples))
        self._update(places, packs)
        self._end_round()

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

    def _steps_until_event(self) -> int:
        return self.every - self._since

    def _act(self) -> None:
        """Do what is due after `_since` local steps of this round."""
        if self._since >= self.every:
            self.sync()

    def _choose(self) -> bool:
        """Have the next steps be local ones, or in step; whether they are local."""
        is_local = self._trained >= self.options.warmup
        self._function.add_up(is_local=is_local, samples=self._samples if is_local else None)
        return is_local

    def _start_round(self) -> None:
        """Take the weights, which all workers share now, as the anchor; no value is copied yet."""
        self._moving = self._moving_averages()
        self._anchors = [v.value.read_value() for v in self._variables]
        self._end_round()

    def _end_round(self) -> None:
        """Count from 0 again: all workers have the anchor's weights."""
        self._since = 0
        self._samples.assign([0, 0])

    @property
    def _variables(self) -> list[Any]:
        return [*self.weights, *self._moving]

    @property
    def _device(self) -> str | None:
        return None if self._collectives is None else self._collectives.device

    @property
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

    def _forget_unassigned(self) -> None:
        """Leave out what no step assigns: an anchor would be memory for nothing."""
        kept = [id(v) in self._function.assigned for v in self._moving]
        if all(kept):
            return
        count = len(self.weights)
        anchors = [a for a, is_kept in zip(self._anchors[count:], kept, strict=True) if is_kept]
        self._anchors = [*self._anchors[:count], *anchors]
        self._moving = [v for v, is_kept in zip(self._moving, kept, strict=True) if is_kept]

    def _differences_of(self, places: tuple[int, ...], since: tf.Tensor) -> list[tf.Tensor]:
        """What this worker adds to the sum for variables: packs, by dtype.

        Args:
            places: the variables, by place.
            since: the counted samples where they were the anchor's.
        """
        trace = self._trace("differences", places, partial(self._differences, places))
        packs: list[tf.Tensor] = trace(self._anchors_of(places), since)
        return packs

    def _added_up(self, places: tuple[int, ...], packs: list[tf.Tensor]) -> list[tf.Tensor]:
        """The sum over workers, which wait for it."""
        if not self._has_peers:
            return packs
        before_collective("weights")
        collectives: Any = self._collectives
        trace = self._trace("sum", places, lambda parts: list(map(collectives.all_reduce, parts)))
        with flight.collective("sync of the weights", self._bytes(places)):
            total: list[tf.Tensor] = trace(packs)
            total[0][-1].numpy()  # waits for the device
        return total

    def _update(
        self, places: tuple[int, ...], packs: list[tf.Tensor], *, keep: float = 0.0
    ) -> None:
        """Make the next anchors of a sum, and assign them.

        Args:
            places: the variables, by place.
            packs: the sum.
            keep: what share of its own weights a worker keeps.
        """
        self.found_nonfinite |= bool(packs[0][-1].numpy() > 0)
        if self.found_nonfinite and self._guard is not None and self._guard.policy == "raise":
            return
        trace = self._trace(("update", keep), places, partial(self._updated, places, keep))
        anchors = trace(self._anchors_of(places), packs)
        for topology, anchor in zip(places, anchors, strict=True):
            self._anchors[topology] = anchor

    def _anchors_of(self, places: Sequence[int]) -> list[tf.Tensor]:
        return [self._anchors[topology] for topology in places]

    def _bytes(self, places: Sequence[int]) -> int:
        entries = sum(math.prod(anchor.shape) for anchor in self._anchors_of(places))
        return int(entries * tf.as_dtype(self.options.wire_dtype).size)

    def _trace(self, what: Any, places: tuple[int, ...], python: Callable[..., Any]) -> Any:
        if self._guard_of_traces is not self._guard:
            self._guard_of_traces = self._guard
            self._traces.clear()
        key = (what, tuple(id(self._variables[topology]) for topology in places))
        if key not in self._traces:

            def on_device(*arguments: Any) -> Any:
                with tf.device(self._device):
                    return python(*arguments)

            self._traces[key] = tf.function(on_device, autograph=False)
        return self._traces[key]

    def _differences(
        self, places: Sequence[int], anchors: Sequence[tf.Tensor], since: tf.Tensor
    ) -> list[tf.Tensor]:
        own, total = tf.unstack(tf.cast(self._samples - since, tf.float64))
        share = tf.math.divide_no_nan(own, total)
        differences = [
            tf.cast(tf.cast(share, a.dtype) * (a - self._variables[i].value), self._wire(a))
            for i, a in zip(places, anchors, strict=True)
        ]
        guard = self._guard
        is_bad = tf.constant(False) if guard is None else guard.any_seen()
        wires = list(dict.fromkeys(d.dtype for d in differences))
        packs = [pack([d for d in differences if d.dtype == wire]) for wire in wires]
        packs[0] = tf.concat([packs[0], [tf.cast(is_bad, wires[0])]], axis=0)
        return packs

    def _updated(
        self,
        places: Sequence[int],
        keep: float,
        anchors: Sequence[tf.Tensor],
        packs: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        packs = [packs[0][:-1], *packs[1:]]
        wires = [self._wire(anchor) for anchor in anchors]
        found: dict[int, tf.Tensor] = {}
        for wire, packed in zip(dict.fromkeys(wires), packs, strict=True):
            chosen = [i for i, one in enumerate(wires) if one == wire]
            parts = unpack(packed, [anchors[i] for i in chosen])
            for i, part in zip(chosen, parts, strict=True):
                delta = tf.cast(part, anchors[i].dtype)
                found[i] = self._next(places[i], anchors[i], delta, keep)
        return [found[i] for i in range(len(anchors))]

    def _next(self, topology: int, anchor: tf.Tensor, delta: tf.Tensor, keep: float) -> tf.Tensor:
        """Assign one variable; its next anchor."""
        variable = self._variables[topology]
        if topology < len(self.momentum):
            m = tf.cast(self.options.outer_momentum, anchor.dtype)
            momentum = m * self.momentum[topology].value + delta
            self.momentum[topology].assign(momentum)
            delta = tf.cast(self.options.outer_learning_rate, anchor.dtype) * (delta + m * momentum)
        value = anchor - delta
        constraint = getattr(variable, "constraint", None)
        value = value if constraint is None else tf.convert_to_tensor(constraint(value))
        own = tf.cast(keep, value.dtype)
        variable.assign(own * variable.value + (1 - own) * value if keep else value)
        return value

    def _wire(self, tensor: tf.Tensor) -> tf.DType:
        """The dtype in which differences of such a tensor travel."""
        wire = tf.as_dtype(self.options.wire_dtype)
        return tensor.dtype if wire == tf.float32 else wire


class StreamingSteps(LocalSteps):
    """Local steps that synchronize fragments of the weights one by one, while they train.

    A fragment's differences are sent every H steps, fragments at evenly spaced steps, and the sum
    is applied a fixed number of steps later, whenever it has arrived. A worker then keeps a share
    of its own weights: Streaming DiLoCo (Douillard et al. 2025, https://arxiv.org/abs/2501.18512,
    section 2). Where an epoch ends, what is under way is applied, and all weights synchronize.
    """

    def __init__(self, stage: CallContext, function: StepFunction, options: SyncOptions) -> None:
        """Divide the weights into fragments of about equal size, in their order."""
        super().__init__(stage, function, options)
        sizes = np.array([math.prod(v.shape) for v in self.weights], float)
        middles = (np.cumsum(sizes) - sizes / 2) / max(sizes.sum(), 1.0)
        numbers = np.minimum((middles * options.fragments).astype(int), options.fragments - 1)
        self._fragment_of = [int(n) for n in numbers]
        self._sent_at = [0] * options.fragments
        self._samples_at = [self._no_samples] * options.fragments
        self._under_way: dict[int, tuple[int, Future[list[tf.Tensor]]]] = {}
        self._sender: BackgroundSum | None = None
        if self._has_peers and options.delay:
            collectives: Any = self._collectives
            self._sender = BackgroundSum(collectives.independent())

    def sync(self) -> None:
        """Apply what is under way, and give all workers the same weights."""
        if self._since == 0:
            return
        for fragment in sorted(self._under_way, key=lambda one: self._under_way[one][0]):
            self._receive(fragment)
        for fragment in range(self.options.fragments):
            places = self._places(fragment)
            if not places:
                continue
            if self._sent_at[fragment] == self._since:  # nothing was trained since
                for topology, anchor in zip(places, self._anchors_of(places), strict=True):
                    self._variables[topology].assign(anchor)
                continue
            packs = self._differences_of(places, self._samples_at[fragment])
            self._update(places, self._added_up(places, packs))
        self.is_synced = self.may_exchange = True
        self._end_round()

    def _end_round(self) -> None:
        super()._end_round()
        self._under_way.clear()
        self._sent_at = [0] * self.options.fragments
        self._samples_at = [self._no_samples] * self.options.fragments

    def _steps_until_event(self) -> int:
        sends = [-(self._since - self._offset(f)) % self.every or self.every for f in self._numbers]
        return min([*sends, *(due - self._since for due, _ in self._under_way.values())])

    def _act(self) -> None:
        for fragment in [f for f, (due, _) in self._under_way.items() if due == self._since]:
            self._receive(fragment)
        for fragment in self._numbers:
            if (self._since - self._offset(fragment)) % self.every == 0 and self._places(fragment):
                self._send(fragment)
                self.may_exchange = True

    @property
    def _numbers(self) -> range:
        return range(self.options.fragments)

    def _offset(self, fragment: int) -> int:
        return -(-(fragment + 1) * self.every // self.options.fragments)

    def _places(self, fragment: int) -> tuple[int, ...]:
        """The variables of a fragment; moving statistics are in the last."""
        found = [i for i, one in enumerate(self._fragment_of) if one == fragment]
        if fragment == self.options.fragments - 1:
            found += range(len(self.weights), len(self._variables))
        return tuple(found)

    def _send(self, fragment: int) -> None:
        places = self._places(fragment)
        packs = self._differences_of(places, self._samples_at[fragment])
        self._sent_at[fragment] = self._since
        self._samples_at[fragment] = tf.identity(self._samples)
        if not self.options.delay:
            self._update(places, self._added_up(places, packs))
            return
        if self._sender is None:
            total: Future[list[tf.Tensor]] = Future()
            total.set_result(packs)
        else:
            total = self._sender.start(packs)
        self._under_way[fragment] = self._since + self.options.delay, total

    def _receive(self, fragment: int) -> None:
        _, total = self._under_way.pop(fragment)
        places = self._places(fragment)
        with flight.collective("sync of the weights", self._bytes(places)):
            packs = total.result()
        self._update(places, packs, keep=self.options.mixing)


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
        made = StreamingSteps if options.delay or options.fragments > 1 else LocalSteps
        kept = function.extensions[LocalSteps] = made(stage, function, options)
        if stage.topology.is_chief:
            _log.info("%s", _in_words(options))
    found: LocalSteps = kept
    return found


def _in_words(options: SyncOptions) -> str:
    outer = {"nesterov": "Nesterov momentum on the mean difference", "none": "the mean"}
    after = f" after {options.warmup} in step" if options.warmup else ""
    parts = f", in {options.fragments} fragments" if options.fragments > 1 else ""
    late = f", which arrive {options.delay} steps later" if options.delay else ""
    return (
        f"workers train on their own and sync every {options.every} steps{after}{parts}{late}, by "
        f"{outer[options.outer_optimizer]}"
    )


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
