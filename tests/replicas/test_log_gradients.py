"""`--log-gradients`: a `GradientLogger` for a script that has none."""

import keras
import pytest

from phalanx.callbacks import GradientLogger
from phalanx.cluster.debug_options import DebugOptions
from phalanx.training import callbacks as training_callbacks
from phalanx.training.callbacks import flat_callbacks, with_gradient_logger


@pytest.fixture
def requested(monkeypatch):
    monkeypatch.setattr(training_callbacks, "switches", lambda: DebugOptions(log_gradients=True))


def loggers(callbacks):
    return [each for each in flat_callbacks(callbacks) if isinstance(each, GradientLogger)]


@pytest.mark.usefixtures("requested")
def test_a_script_that_has_none_gets_one():
    stop = keras.callbacks.EarlyStopping()
    for given in (None, stop, [stop], keras.callbacks.CallbackList([stop])):
        found = with_gradient_logger(given)
        assert len(loggers(found)) == 1
        assert (stop in flat_callbacks(found)) == (given is not None)


@pytest.mark.usefixtures("requested")
def test_one_of_the_script_stays_the_only_one():
    own = GradientLogger(every_n_steps=7)
    for given in (own, [own], keras.callbacks.CallbackList([own])):
        assert loggers(with_gradient_logger(given)) == [own]


def test_without_the_option_nothing_is_added():
    assert with_gradient_logger(None) is None
