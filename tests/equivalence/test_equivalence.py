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

ON_ONE = {"adam", "optimizer_outside_scope"}
"""The cases that `make test` trains on the one replica of a strategy."""

ON_COPIES = {
    "adam", "remainder_1", "batchnorm_synchronized_few", "lazy_subclass", "steps_per_execution_3",
    "own_train_step", "optimizer_outside_scope", "Adversaries", "dropout", "multi_optimizer",
    "EverySecond", "Codebook", "InBatchNegatives",
}  # fmt: skip
"""The cases that `make test` trains on two replicas in one process: what their copies of variables,
uneven parts and readings can make different from two workers."""

ON_WORKERS = {
    "adam", "global_clipnorm", "loss_scale_clipped", "ema_overwrite", "remainder_1",
    "only_1_samples", "sample_weight", "regularizers", "quotient_of_sums_loss",
    "batchnorm_synchronized_few", "dropout", "augmented", "stateful_metrics",
    "steps_per_execution_3", "own_train_step", "unknown_length", "generator",
    "dataset_shuffled", "validation_uneven", "early_stopping", "Adversaries", "SumOverRows",
    "Contrast", "MadeInTheStep", "EverySecond", "AccumulatesByHand", "Codebook", "Center",
    "FeatureQueue", "ShuffledMixup", "InBatchNegatives_static_batch",
    "LabelsOfConstants_static_batch", "FakesBesideReals", "stateful_recurrent", "BatchBefore",
    "MemoryBank", "GraphsJoinedByMap", "NodesOfOneGraph", "NodesOfSparseGraph",
    "PseudoLabels", "PseudoLabelsBehindMore",
}  # fmt: skip
"""The cases that `make test` trains on two workers: one of each kind."""

ON_THREE = {"remainder_1", "only_2_samples"}
"""The cases that `make test` trains on three replicas, of which some may be without samples."""


def counts(names, of_one, of_two, of_three):
    """(name, count) for each case, `full` where it is not in the set for that count."""
    chosen = {1: of_one, 2: of_two, 3: of_three}
    return [
        pytest.param(name, count, marks=() if name in kept else pytest.mark.full)
        for count, kept in chosen.items()
        for name in names
    ]


ON_WORKERS_ONLY = {"MadeInTheStep", "Center", "MemoryBank"}
"""What replicas of one process cannot do: make variables in a step, and assign to a variable that
says nothing of how TensorFlow is to aggregate it."""


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


BUCKET_MB = {3: 1e-4}
"""Three workers add up gradients in several buckets (of 100 bytes), fewer in one piece."""


def on_this_worker(name, bucket_mb=None):
    from equivalence_case import refuse_what_gpus_refuse
    from equivalence_cases import CASES

    import phalanx
    from phalanx.cluster.reduce_options import ReduceOptions

    refuse_what_gpus_refuse()
    if bucket_mb is not None:
        phalanx.strategy().reduce_options = ReduceOptions(bucket_mb=bucket_mb)
    return run(CASES[name], by_phalanx())


def family(names):
    class Family:
        @pytest.mark.parametrize(
            ("name", "replicas"),
            counts([n for n in names if n not in ON_WORKERS_ONLY], ON_ONE, ON_COPIES, ON_THREE),
        )
        def test_mirrored(self, name, replicas, request):
            strategy = request.getfixturevalue(f"mirrored{replicas}")
            assert strategy.num_replicas_in_sync == replicas
            assert_same(on_one_device(name), under(strategy, CASES[name]), CASES[name])

        @pytest.mark.parametrize(("name", "workers"), counts(names, ON_ONE, ON_WORKERS, set()))
        def test_multiworker(self, name, workers, pool):
            arguments = (name, BUCKET_MB.get(workers))
            outcomes = pool(workers).run(on_this_worker, args=arguments, deadline=600)
            assert len(outcomes) == workers
            assert_all_same(name, outcomes)

        @pytest.mark.full
        @pytest.mark.horovod
        @pytest.mark.parametrize("name", names)
        def test_horovod(self, name, pool):
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


def test_chosen_cases_are_cases():
    assert CASES.keys() >= ON_ONE | ON_COPIES | ON_WORKERS | ON_THREE


def test_the_reference_is_one_device():
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1
