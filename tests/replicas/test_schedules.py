"""Learning rates for many workers."""

import keras
import numpy as np
import pytest
from small_models import features, small_model, targets

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.schedules import LinearScaling, WarmUp

COSINE = keras.optimizers.schedules.CosineDecay(0.4, 10)


def rates(schedule, steps):
    return [float(schedule(step)) for step in range(steps)]


def test_a_warm_up_rises_in_a_line_and_stays():
    assert rates(WarmUp(0.8, steps=4), 6) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates(WarmUp(0.8, steps=4, start=0.5), 5) == pytest.approx([0.4, 0.5, 0.6, 0.7, 0.8])
    assert rates(WarmUp(0.8, steps=0), 2) == pytest.approx([0.8, 0.8])


def test_scaling_begins_with_one_device_s_rate():
    """Goyal et al. 2017, section 2.2: from eta to k times eta, an equal step at a time."""
    scaled = LinearScaling(0.1, factor=8, warmup_steps=7)
    assert rates(scaled, 9) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8])
    assert rates(LinearScaling(0.1, factor=8), 2) == pytest.approx([0.8, 0.8])


def test_the_factor_is_the_number_of_replicas(mirrored2):
    assert LinearScaling(0.1).factor == 1.0
    with mirrored2.scope():
        assert LinearScaling(0.1).factor == 2.0


def test_they_compose_with_keras_s_schedules_and_each_other():
    plain = np.array(rates(COSINE, 12))
    rise = np.minimum(np.arange(12) / 4, 1)
    assert rates(WarmUp(COSINE, steps=4), 12) == pytest.approx(plain * rise)
    scaled = LinearScaling(COSINE, factor=3, warmup_steps=4)
    assert rates(scaled, 12) == pytest.approx(plain * (1 + 2 * rise))
    both = WarmUp(LinearScaling(COSINE, factor=3), steps=4)
    assert rates(both, 12) == pytest.approx(3 * plain * rise)


@pytest.mark.parametrize(
    "schedule",
    [
        WarmUp(0.1, steps=3, start=0.2),
        WarmUp(COSINE, steps=3),
        LinearScaling(0.1, factor=4, warmup_steps=3),
        LinearScaling(WarmUp(COSINE, steps=2), factor=1.5),
    ],
)
def test_they_survive_saving(schedule, tmp_path):
    model = small_model(keras.optimizers.SGD(schedule))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert again.get_config() == model.optimizer.get_config()
    assert rates(again._learning_rate, 6) == pytest.approx(rates(schedule, 6))


def test_replicas_train_by_them_as_one_device_does(mirrored2):
    def train(model):
        return phalanx.fit(
            model, features(19), targets(19), batch_size=4, epochs=2, shuffle=False, verbose=0
        ).history["loss"]

    def model():
        return small_model(keras.optimizers.SGD(LinearScaling(0.05, factor=4, warmup_steps=6)))

    expected = train(model())
    with mirrored2.scope():
        replicated_job = model()
    assert train(replicated_job) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WarmUp(0.1, steps=-1), "steps must be a number of steps.*found -1"),
        (lambda: WarmUp(0.1, steps=2.5), "steps must be a number of steps.*found 2.5"),
        (lambda: WarmUp(0.1, steps=2, start=2), "start must be a share from 0 to 1; found 2"),
        (lambda: WarmUp("fast", steps=2), "learning_rate must be a number.*found 'fast'"),
        (lambda: LinearScaling(-0.1), "learning_rate must be a number.*found -0.1"),
        (lambda: LinearScaling(0.1, factor=0), "factor must be above 0; found 0"),
        (lambda: LinearScaling(0.1, warmup_steps=-2), "warmup_steps must be.*found -2"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
