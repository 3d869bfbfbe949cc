"""A small training that must come out the same on one device and on many."""

import dataclasses
import functools
import warnings
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

FIT = ("fit", "evaluate", "predict")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One training.

    `build` makes a compiled model, `data` the arguments of fit (x, y, batch_size ...),
    `held_out` those of evaluate; both are called afresh for every run. `tolerance` is
    relative, per weight tensor and per number in the history; `why` says why it is not 1e-5.
    `reference` is "keras" (plain Keras on one device), or "phalanx" on one device where
    Keras has no order of its own that could be matched. `weights_show_all` says that the
    case is about training alone: evaluate and predict, which cost as much again, would only
    repeat what other cases show.
    """

    name: str
    build: Callable
    data: Callable
    held_out: Callable | None = None
    tolerance: float = 1e-5
    why: str = ""
    reference: str = "keras"
    weights_show_all: bool = False
    scope_for_optimizer: bool = True
    policy: str = "float32"


@dataclasses.dataclass
class Outcome:
    """What a training left: everything that must be the same."""

    weights: list
    optimizer: list
    history: dict
    evaluation: dict
    predictions: list


def run(case, methods):
    """Train, evaluate and predict; `methods` maps "fit", "evaluate", "predict" to functions."""
    keras.utils.set_random_seed(11)
    # Keras's own, on the reference run: it says so at the end of every dataset of unknown
    # length, and some of its callbacks read variables in a way that NumPy 2 deprecates.
    warnings.filterwarnings("ignore", message="Your input ran out of data")
    warnings.filterwarnings("ignore", message="__array__ implementation doesn't accept a copy")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(case.policy)
    try:
        model = case.build()
        arguments = {"verbose": 0, "epochs": 2, "shuffle": False, **case.data()}
        train = getattr(case, "train", None) or methods["fit"]
        history = train(model, **arguments).history
        if case.weights_show_all:
            return outcome_of(model, history)
        held_out = (case.held_out or default_held_out)()
        evaluation = methods["evaluate"](model, **held_out, verbose=0, return_dict=True)
        rows = {"x": held_out["x"], "batch_size": held_out.get("batch_size")}
        predictions = methods["predict"](model, **rows, verbose=0)
    finally:
        keras.config.set_dtype_policy(before)
    return outcome_of(model, history, evaluation, predictions)


def outcome_of(model, history, evaluation=None, predictions=()):
    return Outcome(
        weights=[np.array(v.numpy()) for v in [*model.variables, *recurrent_states(model)]],
        optimizer=[np.array(v.numpy()) for v in model.optimizer.variables],
        history={k: np.array(v, "float64") for k, v in history.items()},
        evaluation={k: float(v) for k, v in (evaluation or {}).items()},
        predictions=[np.array(p) for p in keras.tree.flatten(predictions)],
    )


def recurrent_states(model):
    """What recurrent layers with `stateful=True` keep, which are no variables of the model."""
    return [
        state
        for layer in model._flatten_layers()
        for state in keras.tree.flatten(getattr(layer, "states", None) or [])
    ]


@functools.cache
def refuse_what_gpus_refuse():
    """Have this process's all-reduces refuse int32, as TensorFlow does on GPUs alone."""
    from tensorflow.python.ops import collective_ops

    original = collective_ops.all_reduce_v2

    def all_reduce_v2(tensor, *args, **kwargs):
        assert tensor.dtype != tf.int32, "GPUs add up no int32"
        return original(tensor, *args, **kwargs)

    collective_ops.all_reduce_v2 = all_reduce_v2


def default_held_out():
    return {"x": features(13, seed=5), "y": labels(13, seed=5), "batch_size": 5}


def features(n, seed=0, width=6):
    return np.random.default_rng(seed).normal(size=(n, width)).astype("float32")


def labels(n, seed=0, classes=3):
    return np.random.default_rng(seed + 100).integers(0, classes, size=(n,))


def tokens(n, seed=0, length=5, vocabulary=12):
    """Sequences with zeros, which stand for padding, at their ends."""
    rng = np.random.default_rng(seed + 200)
    rows = rng.integers(1, vocabulary, size=(n, length))
    lengths = rng.integers(1, length + 1, size=(n, 1))
    return np.where(np.arange(length)[None] < lengths, rows, 0)


def plain_keras():
    return {name: getattr(keras.Model, name) for name in FIT}


def by_phalanx():
    import phalanx

    return {name: getattr(phalanx, name) for name in FIT}


def assert_same(expected, got, case):
    """Every part of two outcomes agrees to the case's relative tolerance."""
    for part in ("weights", "optimizer", "predictions"):
        ours, theirs = getattr(got, part), getattr(expected, part)
        assert len(ours) == len(theirs), part
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert a.shape == b.shape, (part, i, a.shape, b.shape)
            error = distance(a, b)
            assert error <= case.tolerance, f"{part}[{i}] of {case.name} is off by {error:.2e}"
    assert list(got.evaluation) == list(expected.evaluation), "order"
    for part in ("history", "evaluation"):
        ours, theirs = getattr(got, part), getattr(expected, part)
        assert sorted(ours) == sorted(theirs), part
        for key in theirs:
            error = distance(np.array(ours[key]), np.array(theirs[key]))
            assert error <= case.tolerance, f"{part}[{key}] of {case.name} is off by {error:.2e}"


def distance(a, b):
    """The largest difference, relative to the largest entry."""
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    if a.size == 0:
        return 0.0
    if not (np.isfinite(a) == np.isfinite(b)).all():
        return np.inf
    a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
    return float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-3))
