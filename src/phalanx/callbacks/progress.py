"""One progress display for the whole worker group: the chief's, with global numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import keras

from phalanx.launcher.log_lines import without_style

_BAR_CELLS = 20


def is_interactive(stream: TextIO, *, watched: bool = False) -> bool:
    """Whether a line may be redrawn: a terminal, or a launcher that shows one."""
    return watched or stream.isatty()


class Progress(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Prints what Keras's progress bar prints, once for all workers.

    On a terminal the line is redrawn whenever new metrics were read. Elsewhere only the
    finished line of an epoch is printed, so that logs stay readable.
    """

    def __init__(
        self,
        *,
        verbose: int = 1,
        live: bool,
        clock: Callable[[], float],
        stream: TextIO | None = None,
    ) -> None:
        """Set the display up.

        Args:
            verbose: 1 for a bar, 2 for a plain line an epoch.
            live: whether the line may be redrawn while an epoch runs.
            clock: seconds, increasing.
            stream: where to print; standard output when None.
        """
        super().__init__()
        self._verbose = verbose
        self._live = live and verbose == 1
        self._clock = clock
        self._stream = stream
        self._started = 0.0
        self._drawn: Mapping[str, Any] | None = None
        self._width = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Head an epoch's line."""
        self._start()
        self._print(f"Epoch {epoch + 1}/{self.params['epochs']}\n")

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Redraw the line if the metrics are new."""
        self._redraw(batch + 1, logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Finish an epoch's line."""
        self._finish(logs)

    def _start(self) -> None:
        self._started = self._clock()
        self._drawn = None
        self._seen = 0

    def _redraw(self, done: int, logs: Mapping[str, Any] | None) -> None:
        self._seen = done
        if self._live and logs and logs is not self._drawn:
            self._drawn = logs
            line = self.line(done, logs)
            self._print("\r" + self._over_the_last(line))
            self._width = len(without_style(line))

    def _finish(self, logs: Mapping[str, Any] | None) -> None:
        line = self.line(self._seen, logs or {}, finished=True)
        self._print(("\r" if self._live else "") + self._over_the_last(line) + "\n")
        self._width = 0

    def line(self, done: int, logs: Mapping[str, Any], *, finished: bool = False) -> str:
        """The display's one line after `done` steps."""
        count, share, timed_collective, metrics = format_line(
            done, self.params.get("steps"), self.seconds(), logs, finished=finished
        )
        head = (
            [count, _bar(share), timed_collective]
            if self._verbose == 1
            else [count, timed_collective]
        )
        return " - ".join([" ".join(head), *(f"{name}: {value}" for name, value in metrics)])

    def seconds(self) -> float:
        """How long the epoch has run."""
        return self._clock() - self._started

    def _over_the_last(self, line: str) -> str:
        """The line with blanks over what the one before had more."""
        return line + " " * (self._width - len(without_style(line)))

    def _print(self, text: str) -> None:
        stream = self._stream or sys.stdout
        stream.write(text)
        stream.flush()


def format_line(
    done: int, steps: int | None, seconds: float, logs: Mapping[str, Any], *, finished: bool
) -> tuple[str, float, str, list[tuple[str, str]]]:
    """What a line says: the count of steps, the share done, the time, and the metrics."""
    steps = steps or (done if finished else None)
    each = _per_step(seconds / max(done, 1))
    timed_collective = (
        f"{seconds:.0f}s {each}" if finished or not steps else _eta(seconds, done, steps)
    )
    if not finished and steps:
        timed_collective += f" {each}"
    metrics = [(name, _number(value)) for name, value in sorted(logs.items(), key=_order)]
    share = 1.0 if finished else done / steps if steps else 0.0
    return f"{done}/{steps if steps else 'Unknown'}", share, timed_collective, metrics


class EvaluationProgress(Progress):
    """The same for `evaluate` and `predict` on their own."""

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start the line."""
        self._start()

    def on_test_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Redraw the line if the metrics are new."""
        self._redraw(batch + 1, logs)

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finish the line."""
        self._finish(logs)

    def on_predict_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start the line."""
        self._start()

    def on_predict_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Count."""
        self._seen = batch + 1

    def on_predict_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finish the line."""
        self._finish(None)


def _bar(share: float) -> str:
    return ("━" * int(share * _BAR_CELLS)).ljust(_BAR_CELLS, "─")


def _eta(seconds: float, done: int, steps: int) -> str:
    left = round(seconds / max(done, 1) * (steps - done))
    return f"{left}s" if left < 60 else f"{left // 60}:{left % 60:02}"


def _per_step(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.0f}s/step"
    return f"{seconds * 1e3:.0f}ms/step" if seconds >= 1e-3 else f"{seconds * 1e6:.0f}us/step"


def _number(value: Any) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return f"{number:.4f}" if abs(number) > 1e-3 or number == 0 else f"{number:.4e}"


def _order(item: tuple[str, Any]) -> tuple[bool, str]:
    """Training metrics first, validation after them, each by name, as Keras does."""
    return item[0].startswith("val_"), item[0]
