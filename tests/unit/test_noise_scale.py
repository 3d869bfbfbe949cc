"""The gradient noise scale of a gradient whose noise is known."""

import numpy as np
import pytest

from phalanx.gradients.statistics import NoiseScale

SMALL, BIG = 8, 32
TRUE = np.full(200, 0.1)
DEVIATION = 1.5


def norms(rng):
    """Squared norms of mean gradients over 4 times 8 samples, and over all 32."""
    parts = TRUE + rng.normal(size=(BIG // SMALL, 200)) * DEVIATION / np.sqrt(SMALL)
    return (parts**2).sum(1).mean(), (parts.mean(0) ** 2).sum()


def test_the_noise_scale_of_a_gaussian_gradient_is_found():
    noise, rng = NoiseScale(smoothing=0.999), np.random.default_rng(0)
    for _ in range(4000):
        small, big = norms(rng)
        noise.update(SMALL, small, BIG, big)
    trace, squared = 200 * DEVIATION**2, float(TRUE @ TRUE)
    assert noise.trace == pytest.approx(trace, rel=0.02)
    assert noise.squared_norm == pytest.approx(squared, rel=0.05)
    assert noise.critical_batch_size == pytest.approx(trace / squared, rel=0.05)


def test_one_look_is_the_papers_two_formulas():
    noise = NoiseScale()
    noise.update(8, 5.0, 32, 3.0)
    assert noise.squared_norm == pytest.approx((32 * 3.0 - 8 * 5.0) / 24)
    assert noise.trace == pytest.approx((5.0 - 3.0) / (1 / 8 - 1 / 32))


def test_a_constant_stays_itself_however_smooth():
    noise = NoiseScale(smoothing=0.99)
    for _ in range(5):
        noise.update(8, 5.0, 32, 3.0)
    assert noise.trace == pytest.approx(2.0 / (1 / 8 - 1 / 32))


def test_nothing_seen_is_nothing_said():
    noise = NoiseScale()
    assert noise.critical_batch_size is None
    noise.update(0, 1.0, 8, 1.0)
    noise.update(8, 1.0, 8, 1.0)
    assert noise.critical_batch_size is None


def test_without_noise_any_batch_is_large_enough():
    noise = NoiseScale()
    noise.update(8, 2.0, 32, 2.0)
    assert noise.critical_batch_size == 0.0


def test_estimates_that_make_no_sense_are_not_reported():
    noise = NoiseScale()
    noise.update(8, 100.0, 32, 1.0)
    assert noise.critical_batch_size is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_does_not_spoil_the_rest(bad):
    noise = NoiseScale()
    noise.update(8, 5.0, 32, 3.0)
    before = noise.critical_batch_size
    noise.update(8, bad, 32, bad)
    assert noise.critical_batch_size == before
