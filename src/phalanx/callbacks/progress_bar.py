"""One progress display for the whole run, in colour where it can be redrawn."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.text import Text

from phalanx.callbacks.callback import Callback
from phalanx.callbacks.progress import Progress, format_line, is_interactive
from phalanx.cluster.spec import WorkerSpec

_BAR_CELLS = 20


class DistributedProgress(Progress, Callback):
    """Shows how the whole run goes: one display for all workers, with global numbers.

    On a terminal, also on the launcher's, one line is redrawn: the epoch, a bar, the time
    that is left, steps a second and the metrics of all workers. Elsewhere each epoch prints
    one plain line. Given to `fit`, it takes the place of Keras's display.
    """

    runs_on: Literal["all", "chief"] = "chief"

    def __init__(
        self,
        *,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        stream: TextIO | None = None,
    ) -> None:
        """Set the display up.

        Args:
            live: whether a line may be redrawn; None for where there is a terminal.
            clock: seconds, increasing.
            stream: where to print; standard output when None.
        """
        spec = WorkerSpec.from_environment(os.environ)
        watched = spec is not None and spec.interactive
        super().__init__(
            live=is_interactive(stream or sys.stdout, watched=watched) if live is None else live,
            clock=clock,
            stream=stream,
        )
        self._epoch = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Say who trains."""
        cluster = self.cluster
        where = f"{_count(cluster.workers, 'worker')}, {_count(cluster.replicas, 'replica')}"
        if cluster.ps_tasks:
            where = f"{_count(cluster.ps_tasks, 'worker')}, each at its own pace"
        self._print(f"Training {self.model.name} on {where}\n")

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Begin an epoch's line."""
        self._epoch = epoch
        self._start()

    def line(self, done: int, logs: Mapping[str, Any], *, finished: bool = False) -> str:
        """The display's one line after `done` steps."""
        count, share, timed_collective, metrics = format_line(
            done, self.params.get("steps"), self.seconds(), logs, finished=finished
        )
        bar = round(share * _BAR_CELLS)
        text = Text.assemble(
            (f"Epoch {self._epoch + 1}/{self.params['epochs']} ", "bold"),
            ("━" * bar, "green" if finished else "cyan"),
            ("━" * (_BAR_CELLS - bar), "dim"),
            f" {count} ",
            (timed_collective, "dim"),
        )
        for name, value in metrics:
            text.append(f" - {name}: ").append(value, "bold")
        return _drawn(text) if self._live else text.plain


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _drawn(text: Text) -> str:
    """The text with the codes that colour it, on one line."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=10_000)
    console.print(text, end="", soft_wrap=True)
    return stream.getvalue()
