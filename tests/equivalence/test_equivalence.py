"""The heart of the tests: N replicas end where one device ends.

One class is one family of cases. `--dist loadscope` keeps a class in one process, which then
trains each reference once, and starts one gang for several cases: a worker's first training
costs as much as two later ones.
"""

import contextlib
import functools

import pytest
import tensorflow as tf
from equivalence_case import assert_same, by_phalanx, plain_keras, run
from equivalence_cases import CASES, FAMILIES

from phalanx.testing import run_gang

CASES_A_GANG = 6
THREE = pytest.param(3, marks=pytest.mark.full)  # more than a small machine has cores
THREE_WORKERS = pytest.param(3, marks=pytest.mark.full)


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


def on_this_worker(names):
    outcomes = {}
    for name in names:
        try:
            outcomes[name] = run(CASES[name], by_phalanx())
        except Exception as error:
            error.add_note(f"It came up in the case {name!r}, one of {names}.")
            raise
    return outcomes


@functools.cache
def on_workers(names, workers, strategy="multiworker"):
    deadline = 600 + 20 * len(names)
    return run_gang(on_this_worker, workers, args=(names,), deadline=deadline, strategy=strategy)


def chosen(request, workers):
    """The cases of this class that were asked for with as many workers, in gangs' portions."""
    of_class = [item for item in request.session.items if item.cls is request.cls]
    own = [item for item in of_class if item.originalname == request.node.originalname]
    parameters = [item.callspec.params for item in own]
    names = [p["name"] for p in parameters if p.get("workers") == workers]
    return [tuple(names[i : i + CASES_A_GANG]) for i in range(0, len(names), CASES_A_GANG)]


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
        def test_multiworker(self, name, workers, request):
            (portion,) = (names for names in chosen(request, workers) if name in names)
            assert_all_same(name, [found[name] for found in on_workers(portion, workers)])

        @pytest.mark.horovod
        @pytest.mark.parametrize("workers", [2])
        @pytest.mark.parametrize("name", names)
        def test_horovod(self, name, workers, request):
            pytest.importorskip("horovod")
            (portion,) = (names for names in chosen(request, workers) if name in names)
            outcomes = on_workers(portion, workers, strategy="horovod")
            assert_all_same(name, [found[name] for found in outcomes])

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
