"""The heart of the tests: N replicas end where one device ends.

One class is one family of cases. `--dist loadscope` keeps a class in one process, which then
trains each reference once, on the same workers: a worker's first training costs as much as two
later ones.
"""

import contextlib
import functools

import pytest
import tensorflow as tf
from equivalence_case import assert_same, by_phalanx, plain_keras, run
from equivalence_cases import CASES, FAMILIES

THREE = pytest.param(3, marks=pytest.mark.long)  # more than a small machine has cores
THREE_WORKERS = pytest.param(3, marks=[pytest.mark.long, pytest.mark.full])


@functools.cache
def on_one_device(name):
    case = CASES[name]
    return run(case, plain_keras() if case.reference == "keras" else by_phalanx())


def under(strategy, case):
    scope = strategy.scope() if strategy else contextlib.nullcontext()
    if case.scope_for_optimizer:
        with scope:
            return run(case, by_phalanx())

    def fit(model, **arguments):  # the model and optimizer are made before the scope is entered
        import phalanx

        with scope:
            return phalanx.fit(model, **arguments)

    return run(case, {**by_phalanx(), "fit": fit})


def on_this_worker(name):
    from equivalence_cases import CASES

    return run(CASES[name], by_phalanx())


def family(names):
    class Family:
        @pytest.mark.parametrize("replicas", [1, 2, THREE])
        @pytest.mark.parametrize("name", names)
        def test_mirrored(self, name, replicas, request):
            strategy = request.getfixturevalue(f"mirrored{replicas}")
            assert strategy.num_replicas_in_sync == replicas
            assert_same(on_one_device(name), under(strategy, CASES[name]), CASES[name])

        @pytest.mark.parametrize("workers", [1, 2, THREE_WORKERS])
        @pytest.mark.parametrize("name", names)
        def test_multiworker(self, name, workers, pool):
            outcomes = pool(workers).run(on_this_worker, args=(name,), deadline=600)
            assert len(outcomes) == workers
            assert_all_same(name, outcomes)

        @pytest.mark.horovod
        @pytest.mark.parametrize("name", names)
        def test_horovod(self, name, pool):
            pytest.importorskip("horovod")
            workers = pool(2, strategy="horovod")
            assert_all_same(name, workers.run(on_this_worker, args=(name,), deadline=600))

    return Family


def assert_all_same(name, outcomes):
    """Every worker's outcome is that of one device, and their histories are equal."""
    for outcome in outcomes:
        assert_same(on_one_device(name), outcome, CASES[name])
        assert outcome.history.keys() == outcomes[0].history.keys()
        for key, values in outcome.history.items():
            assert (values == outcomes[0].history[key]).all(), "workers disagree"


for title, cases in FAMILIES.items():
    globals()[f"Test{title.title().replace('_', '')}"] = family([case.name for case in cases])


def test_the_reference_is_one_device():
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1
