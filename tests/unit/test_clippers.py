"""Every clipper against NumPy by hand, and against Keras's own where Keras has one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx import clip
from phalanx.errors import ConfigurationError

RNG = np.random.default_rng(0)
DENSE = [RNG.normal(size=(4, 3)).astype("float32"), RNG.normal(size=3).astype("float32") * 5]
WEIGHTS = [RNG.normal(size=(4, 3)).astype("float32"), RNG.normal(size=3).astype("float32")]
PATHS = ["model/dense/kernel", "model/head/bias"]
ROWS = RNG.normal(size=(4, 3)).astype("float32")
CLIPPERS = {
    "clip_by_value": clip.clip_by_value(0.3),
    "clip_by_norm": clip.clip_by_norm(0.5),
    "clip_by_global_norm": clip.clip_by_global_norm(0.5),
    "adaptive_grad_clip": clip.adaptive_grad_clip(0.01),
    "clip_by_percentile": clip.clip_by_percentile(50.0, window=4),
    "per_layer": clip.per_layer(
        {"*/dense": clip.clip_by_norm(0.5)}, otherwise=clip.clip_by_value(0.1)
    ),
}


def clipped(clipper, gradients, weights=WEIGHTS, paths=PATHS, state=None):
    zeros = {name: tf.zeros(shape) for name, shape in clipper.state_shapes().items()}
    weights = [tf.convert_to_tensor(w) for w in weights]
    gradients = [tf.convert_to_tensor(g) if isinstance(g, np.ndarray) else g for g in gradients]
    paths = paths[: len(gradients)]
    return clipper.clip(
        clip.ClipInputs(gradients=gradients, weights=weights, paths=paths, state=state or zeros)
    )


def norm(*arrays):
    return np.sqrt(sum(np.sum(np.square(np.asarray(a, "float64"))) for a in arrays))


def slices(indices, values, rows=4):
    values = tf.convert_to_tensor(values)
    return tf.IndexedSlices(values, tf.constant(indices), tf.constant([rows, values.shape[1]]))


@pytest.mark.parametrize(
    ("clipper", "option"),
    [
        (clip.clip_by_value(0.3), {"clipvalue": 0.3}),
        (clip.clip_by_norm(0.5), {"clipnorm": 0.5}),
        (clip.clip_by_global_norm(0.5), {"global_clipnorm": 0.5}),
        (clip.clip_by_global_norm(500.0), {"global_clipnorm": 500.0}),
    ],
)
def test_a_clipper_gives_what_keras_own_option_gives(clipper, option):
    optimizer = keras.optimizers.SGD(1.0, **option)
    variables = [keras.Variable(np.zeros_like(g)) for g in DENSE]
    optimizer.apply([tf.constant(g) for g in DENSE], variables)
    for got, variable in zip(clipped(clipper, DENSE).gradients, variables, strict=True):
        np.testing.assert_allclose(got.numpy(), -variable.numpy(), rtol=1e-6)


def test_the_norm_that_is_reported_is_the_one_before_clipping():
    for name, clipper in CLIPPERS.items():
        assert float(clipped(clipper, DENSE).norm) == pytest.approx(norm(*DENSE), rel=1e-6), name


@pytest.mark.parametrize("name", CLIPPERS)
def test_nothing_stays_nothing_and_costs_the_others_nothing(name):
    clipper = CLIPPERS[name]
    both = clipped(clipper, [DENSE[0], None])
    assert both.gradients[1] is None
    alone = clipped(clipper, DENSE[:1], WEIGHTS[:1])
    assert (both.gradients[0].numpy() == alone.gradients[0].numpy()).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CLIPPERS)
def test_half_precision_is_clipped_in_float32_and_stays_half(name, dtype):
    halves = [tf.cast(g, dtype) for g in DENSE]
    got = clipped(CLIPPERS[name], halves).gradients
    expected = clipped(CLIPPERS[name], [tf.cast(h, tf.float32) for h in halves]).gradients
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == dtype
        assert (a.numpy() == tf.cast(b, dtype).numpy()).all()


def test_a_half_whose_square_overflows_is_clipped_still():
    (got,) = clipped(clip.clip_by_norm(1.0), [tf.constant([300.0, 400.0], tf.float16)]).gradients
    np.testing.assert_allclose(got.numpy(), [0.6, 0.8], rtol=1e-3)


@pytest.mark.parametrize("name", [n for n in CLIPPERS if n != "adaptive_grad_clip"])
def test_rows_that_repeat_are_clipped_as_their_sum(name):
    sparse = slices([2, 0, 2, 2], ROWS)
    dense = tf.convert_to_tensor(sparse)
    got = clipped(CLIPPERS[name], [sparse, DENSE[1]])
    expected = clipped(CLIPPERS[name], [dense, DENSE[1]])
    assert isinstance(got.gradients[0], tf.IndexedSlices)
    for a, b in zip(got.gradients, expected.gradients, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(a), b, rtol=1e-5, atol=1e-7)
    assert float(got.norm) == pytest.approx(float(expected.norm), rel=1e-6)


def brock(gradient, weight, ratio, epsilon, axes):
    """Equation 3 of Brock et al. 2021."""
    weight_norm = np.maximum(np.sqrt((weight**2).sum(axes, keepdims=True)), epsilon)
    gradient_norm = np.sqrt((gradient**2).sum(axes, keepdims=True))
    too_long = gradient_norm / weight_norm > ratio
    shortened = ratio * weight_norm / np.maximum(gradient_norm, 1e-30) * gradient
    return np.where(too_long, shortened, gradient)


@pytest.mark.parametrize(
    ("shape", "axes"), [((4, 3), (0,)), ((3, 3, 2, 5), (0, 1, 2)), ((6,), (0,)), ((), ())]
)
def test_adaptive_is_the_papers_for_each_unit(shape, axes):
    gradient = (RNG.normal(size=shape) * 0.05).astype("float32")
    weight = RNG.normal(size=shape).astype("float32")
    (got,) = clipped(clip.adaptive_grad_clip(0.04), [np.asarray(gradient)], [weight]).gradients
    np.testing.assert_allclose(got, brock(gradient, weight, 0.04, 1e-3, axes), rtol=1e-5)


def test_adaptive_lets_weights_of_zero_begin():
    gradient, weight = np.ones((2, 2), "float32"), np.zeros((2, 2), "float32")
    (got,) = clipped(clip.adaptive_grad_clip(0.1, epsilon=0.01), [gradient], [weight]).gradients
    np.testing.assert_allclose(np.sqrt((got.numpy() ** 2).sum(0)), 0.1 * 0.01, rtol=1e-5)


def test_adaptive_takes_a_row_of_an_embedding_as_a_unit():
    sparse = slices([2, 0, 2, 2], ROWS)
    (got,) = clipped(clip.adaptive_grad_clip(0.04), [sparse], WEIGHTS[:1]).gradients
    dense = tf.convert_to_tensor(sparse).numpy()
    expected = brock(dense, WEIGHTS[0], 0.04, 1e-3, (1,))
    np.testing.assert_allclose(tf.convert_to_tensor(got), expected, rtol=1e-5)


@pytest.mark.parametrize("percentile", [10.0, 37.5, 50.0, 100.0])
def test_the_window_of_norms_is_numpys_percentile(percentile):
    clipper = clip.clip_by_percentile(percentile, window=7)
    norms, state = [], None
    for step in range(25):
        gradient = RNG.normal(size=5).astype("float32") * (1 + step % 4)
        result = clipped(clipper, [gradient], WEIGHTS[1:], state=state)
        state = result.state
        norms.append(norm(gradient))
        limit = np.percentile(norms[-7:], percentile)
        expected = gradient * min(1.0, limit / norms[-1])
        np.testing.assert_allclose(result.gradients[0], expected, rtol=2e-5)


def test_a_norm_that_is_not_finite_is_not_remembered():
    clipper = clip.clip_by_percentile(50.0, window=3)
    state = clipped(clipper, [DENSE[1]], WEIGHTS[1:]).state
    after = clipped(clipper, [np.array([np.nan, 1, 1], "float32")], WEIGHTS[1:], state=state)
    assert float(after.state["seen"]) == 1.0
    assert (after.state["norms"].numpy() == state["norms"].numpy()).all()
    assert np.isnan(after.gradients[0][0])


LARGE = np.array([3e20, -4e20, 1e5], "float32")


@pytest.mark.parametrize("name", ["clip_by_norm", "clip_by_global_norm"])
def test_a_finite_gradient_whose_square_overflows_keeps_its_direction(name):
    result = clipped(CLIPPERS[name], [LARGE], WEIGHTS[1:])
    np.testing.assert_allclose(result.gradients[0], LARGE * (0.5 / 5e20), rtol=1e-5)
    assert float(result.norm) == pytest.approx(5e20, rel=1e-5)


def test_adaptive_and_the_percentile_keep_the_direction_of_large_gradients():
    (got,) = clipped(clip.adaptive_grad_clip(0.1), [LARGE], WEIGHTS[1:]).gradients
    np.testing.assert_allclose(got, LARGE * (0.1 * norm(WEIGHTS[1]) / 5e20), rtol=1e-5)
    clipper = clip.clip_by_percentile(50.0, window=3)
    state = clipped(clipper, [LARGE / 1e20], WEIGHTS[1:]).state
    (got,) = clipped(clipper, [LARGE], WEIGHTS[1:], state=state).gradients
    np.testing.assert_allclose(got, LARGE * np.float32(2.5e20 / 5e20), rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", [n for n in CLIPPERS if n not in ("clip_by_value", "per_layer")])
def test_what_is_scaled_with_a_bad_entry_turns_to_nan_not_to_zero(name, bad):
    gradient = np.array([1.0, bad, 2.0], "float32")
    result = clipped(CLIPPERS[name], [gradient], WEIGHTS[1:])
    assert np.isnan(result.gradients[0]).all()
    assert not np.isfinite(result.norm)


@pytest.mark.parametrize("name", [n for n in CLIPPERS if n != "adaptive_grad_clip"])
def test_rows_that_repeat_are_summed_in_float32(name):
    halves = slices([1, 1], np.full((2, 3), 40000, "float16"))
    (got,) = clipped(CLIPPERS[name], [halves], WEIGHTS[:1]).gradients
    stored = tf.cast(halves.values, tf.float32), halves.indices, halves.dense_shape
    dense = tf.convert_to_tensor(tf.IndexedSlices(*stored))
    (expected,) = clipped(CLIPPERS[name], [dense], WEIGHTS[:1]).gradients
    got = tf.IndexedSlices(tf.cast(got.values, tf.float32), got.indices, got.dense_shape)
    np.testing.assert_allclose(tf.convert_to_tensor(got), expected, rtol=1e-3)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", CLIPPERS)
def test_a_clipper_gives_in_a_graph_what_it_gives_at_once(name, jit_compile):
    def run(rows, bias):
        result = clipped(CLIPPERS[name], [slices([2, 0, 2, 2], rows), bias])
        first, second = result.gradients
        return tf.convert_to_tensor(first), second, result.norm, result.state

    traced = tf.function(run, jit_compile=jit_compile, autograph=False)
    arguments = tf.constant(ROWS), tf.constant(DENSE[1])
    for got, expected in zip(
        tf.nest.flatten(traced(*arguments)), tf.nest.flatten(run(*arguments)), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_gradients_of_zero_stay_zero():
    zeros = [np.zeros_like(g) for g in DENSE]
    for name, clipper in CLIPPERS.items():
        for got in clipped(clipper, zeros).gradients:
            assert (got.numpy() == 0).all(), name


def test_by_layer_gives_each_group_its_own_clipper():
    paths = ["m/a/kernel", "m/a/bias", "m/b/kernel", "m/c/kernel"]
    gradients = [RNG.normal(size=4).astype("float32") * 3 for _ in paths]
    clipper = clip.per_layer(
        {"m/a": clip.clip_by_global_norm(0.5), "m/b*": None}, otherwise=clip.clip_by_value(0.1)
    )
    got = clipped(clipper, gradients, [np.ones(4, "float32")] * 4, paths).gradients
    assert norm(*got[:2]) == pytest.approx(0.5, rel=1e-5)
    np.testing.assert_allclose(
        got[0], gradients[0] * (0.5 / norm(gradients[0], gradients[1])), rtol=1e-5
    )
    assert (got[2].numpy() == gradients[2]).all()
    assert (got[3].numpy() == np.clip(gradients[3], -0.1, 0.1)).all()


def test_the_first_pattern_that_matches_wins():
    clipper = clip.per_layer({"*/dense/kernel": None, "*": clip.clip_by_value(0.1)})
    first, second = clipped(clipper, DENSE).gradients
    assert (first.numpy() == DENSE[0]).all()
    assert (second.numpy() == np.clip(DENSE[1], -0.1, 0.1)).all()


def test_groups_remember_apart():
    rules = {
        "*/dense": clip.clip_by_percentile(50.0, 3),
        "*/head": clip.clip_by_percentile(50.0, 2),
    }
    clipper = clip.per_layer(rules)
    state = clipped(clipper, DENSE).state
    assert {name: tuple(v.shape) for name, v in state.items()} == clipper.state_shapes()
    assert float(state["0_norms"][-1]) == pytest.approx(norm(DENSE[0]), rel=1e-6)
    assert float(state["1_norms"][-1]) == pytest.approx(norm(DENSE[1]), rel=1e-6)


def test_a_pattern_that_matches_no_variable_is_refused_with_those_there_are():
    clipper = clip.per_layer({"*/dnese": clip.clip_by_value(1.0)})
    with pytest.raises(ConfigurationError, match=r"'\*/dnese'.*model/dense/kernel"):
        clipper.check(PATHS)
    clip.per_layer({"*/dense": clip.clip_by_value(1.0)}).check(PATHS)


@pytest.mark.parametrize(
    "value",
    [0, -1.0, float("nan"), float("inf"), "1", None, True, 1e39, 1e-50, 10**400, np.complex64(1)],
)
@pytest.mark.parametrize(
    "make",
    [clip.clip_by_value, clip.clip_by_norm, clip.clip_by_global_norm, clip.adaptive_grad_clip],
)
def test_a_limit_must_be_a_finite_number_above_zero(make, value):
    with pytest.raises(ConfigurationError, match="must be a finite number above 0; found"):
        make(value)


def test_a_limit_may_be_numpys_own_number():
    assert float(clipped(clip.clip_by_norm(np.float32(0.5)), DENSE[:1]).norm) > 0.5


@pytest.mark.parametrize("percentile", [0, -1, 100.1, float("nan"), "50", True])
def test_a_percentile_must_be_one(percentile):
    with pytest.raises(ConfigurationError, match="percentile must be above 0"):
        clip.clip_by_percentile(percentile)


@pytest.mark.parametrize("window", [0, 1, 2.5, 3.0, float("nan"), float("inf"), None, True])
def test_a_window_must_hold_two_norms(window):
    with pytest.raises(ConfigurationError, match="window must be an integer"):
        clip.clip_by_percentile(50.0, window)


@pytest.mark.parametrize("when", ["during", None, "After"])
def test_when_is_before_or_after(when):
    with pytest.raises(ConfigurationError, match="when must be"):
        clip.clip_by_value(1.0, when=when)


def test_rules_by_layer_must_make_sense():
    with pytest.raises(ConfigurationError, match="at least one pattern"):
        clip.per_layer({})
    for rules in ([("*", None)], {1: None}):
        with pytest.raises(ConfigurationError, match="takes a mapping"):
            clip.per_layer(rules)
    with pytest.raises(ConfigurationError, match="plain clippers"):
        clip.per_layer({"*": 1.0})
    with pytest.raises(ConfigurationError, match="plain clippers"):
        clip.per_layer({"*": clip.per_layer({"*": None})})
    with pytest.raises(ConfigurationError, match="act 'before' the reduction"):
        clip.per_layer({"a": clip.clip_by_value(1, when="before"), "b": clip.clip_by_value(1)})


def test_what_is_no_clipper_or_no_optimizer_is_refused():
    with pytest.raises(ConfigurationError, match=r"needs a keras\.optimizers\.Optimizer"):
        clip.attach("sgd", clip.clip_by_value(1.0))
    with pytest.raises(ConfigurationError, match="is no clipper"):
        clip.attach(keras.optimizers.SGD(), 1.0)
    with pytest.raises(ConfigurationError, match="on_nonfinite must be one of"):
        clip.attach(keras.optimizers.SGD(), on_nonfinite="stop")
