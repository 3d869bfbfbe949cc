"""What `fit` asks of its replicas: which variables, when, who differs, and by how much."""

import itertools
import logging
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx import clip
from phalanx.callbacks import ReplicaConsistencyCheck
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import WorkerMismatchError
from phalanx.keras_compat.model_access import adopt
from phalanx.training import replica_consistency
from phalanx.training.context import CallContext
from phalanx.training.replica_consistency import (
    Apart,
    Lacking,
    ReplicaChecks,
    Unlike,
    VariableDifference,
    compared_variables,
)


@pytest.fixture
def output():
    """Level of all that is said, and what: a value, where it is one."""
    found = []

    class Handler(logging.Handler):
        def emit(self, record):
            found.append((record.levelname, record.args[-1]))

    log, handler = logging.getLogger("phalanx.training.replica_consistency"), Handler()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield found
    log.removeHandler(handler)
    log.setLevel(level)


def model_in(strategy, *, layers=1, optimizer=None):
    with strategy.scope():
        dense = [keras.layers.Dense(4, name=f"d{i}") for i in range(layers)]
        norm = keras.layers.BatchNormalization(name="norm")
        model = keras.Sequential([keras.Input((3,)), *dense, norm], name="m")
        model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
    adopt(model, strategy)
    return model


def checks_of(model, strategy, *, assigned=(), kind=ReplicaChecks, **options):
    total = strategy.num_replicas_in_sync
    topology = ReplicaTopology(local=total, total=total)
    stage = CallContext(model=model, strategy=strategy, topology=topology, exit=ExitStack())
    function = SimpleNamespace(
        assigned={id(v): v for v in assigned}, invariant=set(), extensions={}
    )
    check = ReplicaConsistencyCheck(**{"max_overhead": None, **options})
    return kind(stage, function, check, clock=itertools.count(0.0).__next__)


def found(output):
    """Which variable differed, at which step, and when it was equal."""
    return [(apart.what.name, apart.step, apart.first_difference_at) for _, apart in output]


def rounding(output):
    """How many variables differ by rounding, where that is said."""
    return [args for level, args in output if level == "INFO"]


def change(variable, value, replica=1):
    """Give one replica's copy something else."""
    copy = variable.value.values[replica]
    copy.assign(value(copy.numpy()))


def halves(array):
    return array + 0.5


def rounded(array):
    return array * (1 + 1e-6)


def test_replicas_that_begin_unlike_are_reported_once(mirrored2, output):
    model = model_in(mirrored2)
    change(model.layers[0].bias, halves)
    checks = checks_of(model, mirrored2, every_steps=1)
    checks.begin(0, is_resumed=False)
    checks.after(1)
    checks.end(2)
    ((level, apart),) = output
    assert (level, apart.step, apart.first_difference_at, apart.noun) == (
        "WARNING",
        0,
        None,
        "replica",
    )
    assert (apart.what.name, apart.what.odd, apart.what.reference) == ("m/d0/bias", (1,), 0)
    assert (apart.what.by.largest, apart.what.by.entries, apart.what.by.size) == (0.5, 4, 4)
    assert apart.what.count == 1


def test_they_are_compared_when_it_is_time_and_at_the_end(mirrored2, output):
    model = model_in(mirrored2)
    checks = checks_of(model, mirrored2, every_steps=2)
    checks.begin(10, is_resumed=False)
    change(model.layers[0].kernel, halves)
    checks.after(11)
    assert output == []
    checks.after(12)
    assert found(output) == [("m/d0/kernel", 12, 10)]
    later = checks_of(model_in(mirrored2), mirrored2)
    later.begin(0, is_resumed=False)
    change(later._stage.model.layers[0].kernel, halves)
    later.end(5)
    assert found(output)[1:] == [("m/d0/kernel", 5, 0)]


def test_the_one_of_three_that_is_unlike_the_others_is_named(mirrored3, output):
    model = model_in(mirrored3)
    change(model.layers[0].bias, halves, replica=0)
    checks_of(model, mirrored3).begin(0, is_resumed=False)
    ((_, apart),) = output
    assert (apart.what.name, apart.what.odd, apart.what.reference) == ("m/d0/bias", (0,), 1)


def test_the_words_for_it(snapshot):
    by = VariableDifference(
        largest=0.5, share=0.25, entries=3, size=12, index=(2, 3), values=(1.25, 0.123456789)
    )
    unlike = Unlike(name="m/replica/kernel", odd=(1,), reference=0, by=by, count=2, of=9)
    scalar = replace(unlike, odd=(1, 2), by=replace(by, size=1, entries=1, index=()))
    page = [
        Apart(what=unlike, step=4, first_difference_at=2, noun="worker"),
        Apart(what=scalar, step=0, first_difference_at=None, noun="replica"),
        Apart(what=Lacking(counts=(9, 8)), step=0, first_difference_at=None, noun="replica"),
    ]
    snapshot("replicas_apart", "\n\n".join(map(str, page)))


def test_a_difference_ends_the_training_if_asked_to(mirrored2, output):
    model = model_in(mirrored2)
    checks = checks_of(model, mirrored2, every_steps=1, on_difference="raise")
    checks.begin(0, is_resumed=False)
    change(model.optimizer.variables[1], lambda rate: rate * 2)
    with pytest.raises(
        WorkerMismatchError, match=r"after step 1: .*learning_rate.*\(it is 0\.2 the"
    ):
        checks.after(1)
    assert output == []


def test_nothing_is_compared_if_not_asked_to(mirrored2, output):
    model = model_in(mirrored2)
    change(model.layers[0].bias, halves)
    checks = checks_of(model, mirrored2, every_steps=None)
    checks.begin(0, is_resumed=False)
    checks.after(100)
    checks.end(101)
    assert output == []


@pytest.mark.parametrize(("tolerance", "level"), [(0.3, "INFO"), (0.2, "WARNING")])
def test_tolerance_is_a_share_of_the_largest_entry(tolerance, level, mirrored2, output):
    model = model_in(mirrored2)
    model.layers[0].bias.assign([0.0, -2.0, 1.0, 1.0])
    change(model.layers[0].bias, halves)  # by 0.25 of the largest
    checks_of(model, mirrored2, tolerance=tolerance).begin(0, is_resumed=False)
    assert [each for each, *_ in output] == [level]


def test_a_model_of_many_layers_that_differ_by_rounding_is_no_difference(mirrored2, output):
    model = model_in(mirrored2, layers=10)
    for variable in model.trainable_variables:
        variable.assign(np.ones(variable.shape))
        change(variable, rounded)
    checks = checks_of(model, mirrored2, every_steps=1)
    checks.begin(0, is_resumed=False)
    checks.after(1)
    assert rounding(output) == [22]
    # What is real is found among them, though not all are looked at each time.
    change(model.layers[9].bias, halves)
    checks.after(2)
    checks.after(3)
    assert [each for each, *_ in output] == ["INFO", "WARNING"]
    assert (output[1][1].what.name, output[1][1].what.odd) == ("m/d9/bias", (1,))


@pytest.mark.process
def test_what_replicas_assign_on_their_own_is_left_out(mirrored2, output):
    before = clip.clip_by_percentile(50, when="before")
    after = clip.clip_by_percentile(50)
    optimizer = clip.attach(keras.optimizers.SGD(0.1), before, after)
    model = model_in(mirrored2, optimizer=optimizer)
    state = {v.name: v for v in model.optimizer.variables if "clipper" in v.name}
    own = [v for name, v in state.items() if "clipper_0" in name]
    common = [v for name, v in state.items() if "clipper_1" in name]
    statistics = model.get_layer("norm").moving_mean
    for variable in (*own, *model.metrics[0].variables, statistics):
        change(variable, halves)
    assert own
    checks = checks_of(model, mirrored2, assigned=[statistics], every_steps=1)
    checks.begin(0, is_resumed=False)
    checks.after(1)
    assert output == []
    change(common[0], halves)
    checks.after(2)
    assert "clipper_1" in output[0][1].what.name


class Average(keras.layers.Layer):
    """Has a weight of which each replica holds its own."""

    def build(self, shape):
        self.average = self.add_weight(shape=(), aggregation="mean", name="average")

    def call(self, x):
        return x


@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_average_over_replicas_is_left_out_and_seeds_never_are(is_resumed):
    model = keras.Sequential([keras.Input((3,)), Average(), keras.layers.Dropout(0.5, seed=1)])
    (seed,) = (v for v in model.variables if v.name == "seed_generator_state")
    function = SimpleNamespace(assigned={id(seed): seed}, invariant=set())
    assert compared_variables(model, function, is_resumed=is_resumed) == [seed]


def test_what_was_restored_for_each_replica_is_left_out_until_a_step_reports(mirrored2, output):
    model = model_in(mirrored2)
    statistics = model.get_layer("norm").moving_mean
    change(statistics, halves)
    checks = checks_of(model, mirrored2, every_steps=1)
    checks.begin(7, is_resumed=True)
    assert output == []
    change(model.layers[0].bias, halves)
    checks._function.assigned[id(statistics)] = statistics
    checks.after(8)
    assert found(output) == [("m/d0/bias", 8, 7)]
    fresh = checks_of(model_in(mirrored2), mirrored2)
    change(fresh._stage.model.get_layer("norm").moving_mean, halves)
    fresh.begin(0, is_resumed=False)
    assert found(output)[1:] == [("m/norm/moving_mean", 0, None)]


def test_what_is_found_assigned_later_is_left_out_from_then_on(mirrored2, output):
    model = model_in(mirrored2)
    checks = checks_of(model, mirrored2, every_steps=1)
    checks.begin(0, is_resumed=False)
    checks.after(1)
    statistics = model.get_layer("norm").moving_mean
    change(statistics, halves)
    checks._function.assigned[id(statistics)] = statistics
    checks.after(2)
    assert output == []
    change(model.get_layer("norm").gamma, halves)
    checks.after(3)
    assert found(output) == [("m/norm/gamma", 3, 2)]


def test_a_later_fit_has_the_graph_of_the_first(mirrored2, monkeypatch):
    traces, original = [], replica_consistency.checksum_components

    def traced(variables):
        traces.extend([] if tf.executing_eagerly() else [len(variables)])
        return original(variables)

    monkeypatch.setattr(replica_consistency, "checksum_components", traced)
    model = model_in(mirrored2)
    checks = checks_of(model, mirrored2, every_steps=1)
    for fit in (checks, ReplicaChecks(checks._stage, checks._function, checks._options)):
        fit.begin(0, is_resumed=False)
        fit.after(1)
    assert len(traces) == 1


def test_an_entry_far_into_a_large_variable_is_named(mirrored2, output, monkeypatch):
    monkeypatch.setattr(replica_consistency, "_MOST_ENTRIES", 5)
    model = model_in(mirrored2)
    change(model.layers[0].kernel, lambda array: array + np.eye(3, 4, 1) * [0, 0, 0, 2])
    checks_of(model, mirrored2).begin(0, is_resumed=False)
    ((_, apart),) = output
    assert apart.what.by.largest == pytest.approx(2.0)  # beside a kernel drawn at random
    assert apart.what.by.index == (2, 3)
    assert (apart.what.by.entries, apart.what.by.size) == (1, 12)


def test_a_worker_that_lacks_a_variable_is_reported_before_rows_are_gathered(mirrored2, output):
    requested = []

    class Peer(ReplicaChecks):
        """Beside it, a worker of one variable less."""

        def _rows(self, row):
            rows = np.array([row, row], np.int64)
            if len(requested) == 1:
                rows[1, 1] -= 1
                rows[1, 2:] += 1
            requested.append(row)
            return rows

    model = model_in(mirrored2)
    count = len({id(v) for v in [*model.variables, *model.optimizer.variables]})
    checks = checks_of(model, mirrored2, kind=Peer)
    checks.begin(0, is_resumed=False)
    assert len(requested) == 2
    assert [apart.what for _, apart in output] == [Lacking(counts=(count, count - 1))]


class Words(keras.layers.Layer):
    """Has a weight that is text."""

    def build(self, shape):
        self.words = self.add_weight(
            shape=(), initializer=lambda *_, **__: tf.constant("a"), dtype="string", name="words"
        )

    def call(self, x):
        return x


def test_moving_statistics_of_the_global_batch_are_compared(mirrored2):
    model = model_in(mirrored2)
    statistics = model.get_layer("norm").moving_mean
    assigned = {id(statistics): statistics}
    apart = SimpleNamespace(assigned=assigned, invariant=set())
    together = SimpleNamespace(assigned=assigned, invariant={id(statistics)})
    left_out, compared = (
        [v.name for v in compared_variables(model, function, is_resumed=False)]
        for function in (apart, together)
    )
    assert "moving_mean" not in left_out
    assert "moving_mean" in compared


def test_words_have_no_bits_to_compare():
    model = keras.Sequential([keras.Input((3,)), Words(), keras.layers.Dense(1)])
    chosen = compared_variables(
        model, SimpleNamespace(assigned={}, invariant=set()), is_resumed=False
    )
    assert [variable.name for variable in model.weights] == ["words", "kernel", "bias"]
    assert [variable.name for variable in chosen] == ["kernel", "bias"]
