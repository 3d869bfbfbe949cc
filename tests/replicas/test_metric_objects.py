"""Code that asks the metrics themselves gets what one device has counted."""

import keras
import numpy as np
import pytest
from small_models import features, small_model, targets

import phalanx
from phalanx.checkpoint.replica_values import local_arrays, local_key, replica_components
from phalanx.checkpoint.variable_names import metric_variables
from phalanx.distributed.topology import topology_of
from phalanx.training.metrics import own_shares

OPTIONS = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}


class EverSeen(keras.metrics.Metric):
    """Counts rows, and is never reset; it has a variable that no step assigns, too."""

    def __init__(self, name="ever"):
        super().__init__(name=name)
        self.rows = self.add_variable((), "zeros", name="rows")
        self.constant = self.add_variable((), "ones", name="constant")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.rows.assign_add(keras.ops.sum(keras.ops.ones_like(y_true)))

    def reset_state(self):
        pass

    def result(self):
        return self.rows + 0.0


def state_of(model):
    """The results of the metrics, and their variables that steps assign."""
    for copy in replica_components(model.metrics[-1].metrics[-1].constant):
        assert copy.numpy() == 1.0
    results = {k: float(v) for k, v in model.get_metrics_result().items()}
    variables = [v for metric in model.metrics for v in metric.variables if v.name != "constant"]
    return results, [np.array(v.numpy()) for v in variables]


class Asks(keras.callbacks.Callback):
    """Asks the metrics where an epoch ends."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(state_of(self.model))


def assert_same_states(got, expected):
    for (results, variables), (their_results, theirs) in zip(got, expected, strict=True):
        assert results == pytest.approx(their_results, rel=1e-5)
        assert len(variables) == len(theirs)
        for a, b in zip(variables, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def made(strategy=None):
    metrics = ("mae", keras.metrics.AUC(num_thresholds=5, name="auc"), EverSeen())
    if strategy is None:
        return small_model(metrics=metrics)
    with strategy.scope():
        return small_model(
            metrics=("mae", keras.metrics.AUC(num_thresholds=5, name="auc"), EverSeen())
        )


def binary(n, seed=0):
    return (targets(n, seed) > 0).astype("float32")


def trained(fit, model, *, held_out=None, more=()):
    asks = Asks()
    history = fit(
        model, features(19), binary(19), validation_data=held_out, callbacks=[asks, *more],
        **OPTIONS,
    ).history  # fmt: skip
    return [*asks.seen, state_of(model)], history


@pytest.mark.parametrize("validates", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("replicas", [pytest.param(2, marks=pytest.mark.full), 3])
def test_after_an_epoch(validates, replicas, request):
    held_out = (features(7, seed=1), binary(7, seed=1)) if validates else None
    expected, expected_history = trained(keras.Model.fit, made(), held_out=held_out)
    model = made(request.getfixturevalue(f"mirrored{replicas}"))
    got, history = trained(phalanx.fit, model, held_out=held_out)
    assert_same_states(got, expected)
    for name, values in expected_history.items():
        assert history[name] == pytest.approx(values, rel=1e-5)


def test_after_evaluations_and_batches(mirrored2):
    def states(model, evaluate, train_on_batch):
        for n in (7, 4, 1):
            evaluate(model, features(n), binary(n), batch_size=3, verbose=0)
            yield state_of(model)
            train_on_batch(model, features(n), binary(n))
            yield state_of(model)

    from phalanx.training.batch_methods import train_on_batch

    plain = keras.Model
    expected = list(states(made(), plain.evaluate, plain.train_on_batch))
    assert_same_states(list(states(made(mirrored2), phalanx.evaluate, train_on_batch)), expected)


@pytest.mark.parametrize("at_the_end", [False, pytest.param(True, marks=pytest.mark.full)])
def test_an_evaluation_within_an_epoch_counts_on_as_in_keras(at_the_end, mirrored2):
    """Keras has one set of metrics, so a training continues with what the evaluation left."""

    class Evaluates(keras.callbacks.Callback):
        def __init__(self, evaluate):
            super().__init__()
            self.evaluate = evaluate
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            if batch == (4 if at_the_end else 1):
                self.evaluate(self.model, features(5), binary(5), verbose=0)
                self.seen.append(state_of(self.model))

    of_keras, ours = Evaluates(keras.Model.evaluate), Evaluates(phalanx.evaluate)
    expected, expected_history = trained(keras.Model.fit, made(), more=[of_keras])
    got, history = trained(phalanx.fit, made(mirrored2), more=[ours])
    assert_same_states(ours.seen, of_keras.seen)
    assert_same_states(got, expected)
    for name, values in expected_history.items():
        assert history[name] == pytest.approx(values, rel=1e-5)


def test_what_a_checkpoint_keeps_adds_up(mirrored2):
    model = made(mirrored2)
    phalanx.evaluate(model, features(7), binary(7), verbose=0)
    topology = topology_of(mirrored2)
    named = metric_variables(model)
    shares = own_shares(model, named, local_arrays(named, topology), topology)
    for name, variable in named.items():
        parts = [shares[local_key(replica, name)] for replica in range(2)]
        if variable.name != "constant":
            np.testing.assert_allclose(sum(parts), variable.numpy(), rtol=1e-6)
