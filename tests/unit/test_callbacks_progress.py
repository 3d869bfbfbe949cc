"""The one progress line of a worker group."""

import io

import keras
import pytest

from phalanx.callbacks.progress import EvaluationProgress, Progress, is_interactive
from phalanx.callbacks.progress_bar import DistributedProgress
from phalanx.launcher.log_lines import without_style


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Display:
    """A progress display with a clock that the test turns."""

    def __init__(self, kind=Progress, *, steps=10, epochs=3, **options):
        self.clock, self.stream = Clock(), io.StringIO()
        options = {"verbose": 1, "live": True, **options}
        self.shown = kind(clock=self.clock, stream=self.stream, **options)
        self.shown.set_params({"epochs": epochs, "steps": steps})

    def take(self):
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text

    def train(self, batch, seconds, **logs):
        self.clock.now += seconds
        self.shown.on_train_batch_end(batch, logs)


def test_an_epoch_is_headed():
    display = Display(epochs=7)
    display.shown.on_epoch_begin(4)
    assert display.take() == "Epoch 5/7\n"


def test_a_live_line_is_redrawn_in_place():
    display = Display()
    display.shown.on_epoch_begin(0)
    display.take()
    display.train(4, 1.0, loss=0.5)
    drawn = display.take()
    assert drawn.startswith("\r5/10 ━━━━━━━━━━────────── 1s 200ms/step - loss: 0.5000")
    assert "\n" not in drawn


def test_the_finished_line_ends():
    display = Display()
    display.shown.on_epoch_begin(0)
    display.train(9, 2.0, loss=0.25)
    display.take()
    display.shown.on_epoch_end(0, {"loss": 0.25, "val_loss": 0.5})
    assert display.take() == (
        "\r10/10 ━━━━━━━━━━━━━━━━━━━━ 2s 200ms/step - loss: 0.2500 - val_loss: 0.5000\n"
    )


def test_a_shorter_line_covers_the_longer_one_before():
    display = Display()
    display.shown.on_epoch_begin(0)
    display.take()
    display.train(0, 1.0, loss=0.5, a_metric_with_a_long_name=0.5)
    longer = display.take().lstrip("\r")
    display.train(1, 1.0, loss=0.5)
    assert len(display.take().lstrip("\r")) == len(longer)


def test_logs_that_were_not_read_again_are_not_drawn_again():
    display = Display()
    display.shown.on_epoch_begin(0)
    display.take()
    logs = {"loss": 0.5}
    display.shown.on_train_batch_end(0, logs)
    display.take()
    display.shown.on_train_batch_end(1, logs)
    assert display.take() == ""
    display.shown.on_train_batch_end(2, {"loss": 0.5})
    assert "3/10" in display.take()


def test_without_logs_nothing_is_drawn():
    display = Display()
    display.shown.on_epoch_begin(0)
    display.take()
    display.shown.on_train_batch_end(0, {})
    display.shown.on_train_batch_end(1, None)
    assert display.take() == ""


@pytest.mark.parametrize("options", [{"live": False}, {"verbose": 2}])
def test_where_a_line_cannot_be_redrawn_only_the_finished_one_is_printed(options):
    display = Display(**options)
    display.shown.on_epoch_begin(0)
    display.take()
    for batch in range(10):
        display.train(batch, 0.1, loss=0.5)
    assert display.take() == ""
    display.shown.on_epoch_end(0, {"loss": 0.5})
    finished = display.take()
    assert "\r" not in finished
    assert finished.startswith("10/10 ")
    assert finished.endswith("1s 100ms/step - loss: 0.5000\n")


def test_a_plain_line_has_no_bar():
    display = Display(verbose=2)
    display.shown.on_epoch_begin(0)
    display.train(9, 1.0)
    display.take()
    display.shown.on_epoch_end(0, {"loss": 0.5})
    assert display.take() == "10/10 1s 100ms/step - loss: 0.5000\n"


def test_steps_may_be_unknown_until_the_end():
    display = Display(steps=None)
    display.shown.on_epoch_begin(0)
    display.take()
    display.train(3, 2.0, loss=0.5)
    assert display.take().startswith("\r4/Unknown ──────────────────── 2s 500ms/step - loss")
    display.shown.on_epoch_end(0, {"loss": 0.5})
    assert display.take().startswith("\r4/4 ━━━━━━━━━━━━━━━━━━━━ 2s")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(50.0, "5s/step"), (5.0, "500ms/step"), (0.05, "5ms/step"), (0.0005, "50us/step")],
)
def test_the_time_of_a_step_has_a_unit_that_fits(seconds, shown):
    display = Display()
    display.shown.on_epoch_begin(0)
    display.clock.now += seconds
    assert shown in display.shown.line(10, {}, finished=True)


@pytest.mark.parametrize(
    ("seconds", "left"), [(10.0, " 10s "), (59.0, " 59s "), (60.0, " 1:00 "), (200.0, " 3:20 ")]
)
def test_the_time_left_is_estimated(seconds, left):
    display = Display()
    display.shown.on_epoch_begin(0)
    display.clock.now += seconds
    assert left in display.shown.line(5, {})


@pytest.mark.parametrize("seconds", [59.7, 119.8, 179.9])
def test_the_time_left_never_shows_sixty_seconds(seconds):
    display = Display()
    display.shown.on_epoch_begin(0)
    display.clock.now += seconds
    line = display.shown.line(5, {})
    assert ":60" not in line
    assert " 60s " not in line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, "0.5000"),
        (0, "0.0000"),
        (123.45678, "123.4568"),
        (-2.0, "-2.0000"),
        (0.0001, "1.0000e-04"),
        (-0.0001, "-1.0000e-04"),
        (float("nan"), "nan"),
        ([1, 2], "[1, 2]"),
        ("warm", "warm"),
    ],
)
def test_numbers_are_shown_as_keras_shows_them(value, shown):
    line = Display().shown.line(1, {"m": value}).rpartition(" - ")[2]
    assert line == f"m: {shown}"


def test_metrics_come_by_name_and_validation_last():
    logs = {"val_loss": 1, "zeta": 1, "loss": 1, "val_a": 1, "accuracy": 1}
    names = [part.split(":")[0] for part in Display().shown.line(1, logs).split(" - ")[1:]]
    assert names == ["accuracy", "loss", "zeta", "val_a", "val_loss"]


def test_evaluation_is_one_line():
    display = Display(EvaluationProgress, steps=4)
    display.shown.on_test_begin()
    display.clock.now += 1.0
    display.shown.on_test_batch_end(1, {"loss": 0.5})
    assert display.take().startswith("\r2/4 ")
    display.shown.on_test_batch_end(3, {"loss": 0.5})
    display.take()
    display.shown.on_test_end({"loss": 0.25})
    assert display.take() == "\r4/4 ━━━━━━━━━━━━━━━━━━━━ 1s 250ms/step - loss: 0.2500\n"


def test_a_prediction_is_one_line_without_metrics():
    display = Display(EvaluationProgress, steps=4)
    display.shown.on_predict_begin()
    for batch in range(4):
        display.clock.now += 0.25
        display.shown.on_predict_batch_end(batch, {"outputs": object()})
    display.shown.on_predict_end()
    assert display.take() == "\r4/4 ━━━━━━━━━━━━━━━━━━━━ 1s 250ms/step\n"


def test_it_prints_to_standard_output_of_the_moment(capsys):
    progress = Progress(live=False, clock=Clock())
    progress.set_params({"epochs": 1, "steps": 1})
    progress.on_epoch_begin(0)
    assert capsys.readouterr().out == "Epoch 1/1\n"


@pytest.mark.parametrize(
    ("stream", "watched", "live"),
    [
        (Terminal(), False, True),
        (io.StringIO(), False, False),
        (io.StringIO(), True, True),
        (Terminal(), True, True),
    ],
)
def test_a_terminal_or_a_launcher_that_shows_one_is_live(stream, watched, live):
    assert is_interactive(stream, watched=watched) is live


class Complete(Display):
    """The display of the whole run, which is given nothing but where to print."""

    def __init__(self, **options):
        super().__init__(lambda verbose, **rest: DistributedProgress(**rest), **options)
        self.shown.set_model(keras.Sequential(name="mine"))

    def train_an_epoch(self):
        self.shown.on_train_begin()
        self.shown.on_epoch_begin(1)
        self.train(4, 1.0, loss=0.5)
        between = self.take()
        self.train(9, 1.0, loss=0.25)
        self.shown.on_epoch_end(1, {"loss": 0.25})
        return between, self.take()


def test_the_complete_run_s_display_away_from_a_terminal_is_plain_lines():
    first, rest = Complete(live=False).train_an_epoch()
    assert first == "Training mine on 1 worker, 1 replica\n"
    assert rest == "Epoch 2/3 ━━━━━━━━━━━━━━━━━━━━ 10/10 2s 200ms/step - loss: 0.2500\n"


def test_the_complete_run_s_display_is_redrawn_in_colour():
    first, rest = Complete(live=True).train_an_epoch()
    assert "\x1b[1mEpoch 2/3" in first
    assert first.count("\n") == 1
    shown = [without_style(line).rstrip() for line in rest.split("\r")]
    assert shown[-1] == "Epoch 2/3 ━━━━━━━━━━━━━━━━━━━━ 10/10 2s 200ms/step - loss: 0.2500"
    assert rest.endswith("\n")


def test_the_complete_run_s_display_looks_whether_there_is_a_terminal(monkeypatch):
    for stream, colours in ((Terminal(), True), (io.StringIO(), False)):
        display = DistributedProgress(stream=stream, clock=Clock())
        display.set_params({"epochs": 1, "steps": 2})
        display.set_model(keras.Sequential())
        display.on_epoch_begin(0)
        display.on_epoch_end(0, {})
        assert ("\x1b" in stream.getvalue()) is colours
