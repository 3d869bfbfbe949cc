"""The heart of the tests: N replicas end where one device ends."""

import contextlib
import functools

import pytest
import tensorflow as tf
from equivalence_case import assert_same, by_phalanx, plain_keras, run
from equivalence_cases import CASES

from phalanx.testing import run_gang


@functools.cache
def on_one_device(name):
    case = CASES[name]
    return run(case, plain_keras() if case.reference == "keras" else by_phalanx())


def under(strategy, case):
    scope = strategy.scope() if strategy else contextlib.nullcontext()
    if case.scope_for_optimizer:
        with scope:
            return run(case, by_phalanx())
    outside = case.build  # the model and optimizer are made before the scope is entered

    def fit(model, **arguments):
        import phalanx

        with scope:
            return phalanx.fit(model, **arguments)

    del outside
    return run(case, {**by_phalanx(), "fit": fit})


def on_this_worker(name):
    case = CASES[name]
    return run(case, by_phalanx())


# One group a case: the same process then serves all its tests, with one reference.
BY_CASE = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CASES]


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("name", BY_CASE)
def test_mirrored(name, replicas, request):
    strategy = request.getfixturevalue(f"mirrored{replicas}")
    assert strategy.num_replicas_in_sync == replicas
    assert_same(on_one_device(name), under(strategy, CASES[name]), CASES[name])


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", BY_CASE)
def test_multiworker(name, workers):
    outcomes = run_gang(on_this_worker, workers, args=(name,), deadline=180)
    for outcome in outcomes:
        assert_same(on_one_device(name), outcome, CASES[name])
        assert outcome.history.keys() == outcomes[0].history.keys()
        for key, values in outcome.history.items():
            assert (values == outcomes[0].history[key]).all(), "workers disagree"


def test_the_reference_is_one_device():
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1
