"""Show what the workers print, from their log files, each line with its rank."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from phalanx.launcher.log_lines import LineAssembler, clip, is_startup_noise, without_style
from phalanx.launcher.options import TeeMode
from phalanx.launcher.showing import Showing

CHIEF = 0
_CHUNK = 1 << 16
_CLEAR_LINE = "\r\x1b[2K"


class Tee:
    """Follows log files and copies their lines to a terminal or a file.

    On a terminal the chief's unfinished line, its progress bar, is redrawn in place below
    the other lines. Elsewhere a bar appears once, when its line is finished.

    Args:
        logs: the log file of each worker to show, by rank.
        output: where to show them.
        terminal: whether `output` is a terminal that can redraw a line.
        width: the terminal's width at the moment.
    """

    def __init__(
        self,
        logs: Mapping[int, Path],
        output: Showing,
        *,
        terminal: bool,
        width: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
    ) -> None:
        self._logs = logs
        self._output = output
        self._terminal = terminal
        self._width = width
        self._lines = {rank: LineAssembler() for rank in logs}
        self._read_to = dict.fromkeys(logs, 0)
        self._drawn = ""

    def poll(self) -> None:
        """Show what was printed since the last time, unless the reader has paused: logs wait."""
        if not self._output.is_behind:
            self._show_news()

    def _show_news(self) -> None:
        finished = [
            (rank, line)
            for rank in self._logs
            for chunk in self._news(rank)
            for line in self._lines[rank].feed(chunk)
            if not is_startup_noise(line)
        ]
        self._show(finished)

    def close(self) -> None:
        """Show the rest: the workers have ended."""
        self._show_news()
        self._show([(rank, line) for rank in self._logs for line in self._lines[rank].close()])

    def _news(self, rank: int) -> list[bytes]:
        chunks: list[bytes] = []
        try:
            with self._logs[rank].open("rb") as log:
                log.seek(self._read_to[rank])
                while chunk := log.read(_CHUNK):
                    chunks.append(chunk)
        except OSError:
            # Not there yet; or a network file system fails for now (EIO, ESTALE): read again later.
            return []
        self._read_to[rank] += sum(map(len, chunks))
        return chunks

    def _show(self, finished: list[tuple[int, str]]) -> None:
        bar = self._bar()
        if not finished and bar == self._drawn:
            return
        text = _CLEAR_LINE if self._drawn else ""
        text += "".join(f"{self._label(rank, line)}\n" for rank, line in finished)
        self._output.write(text + bar)
        self._drawn = bar

    def _bar(self) -> str:
        if not self._terminal or CHIEF not in self._lines:
            return ""
        current = self._lines[CHIEF].current
        return clip(self._label(CHIEF, current), self._width() - 1) if current else ""

    def _label(self, rank: int, line: str) -> str:
        return f"[worker {rank}] {line if self._terminal else without_style(line)}"


def ranks_to_show(mode: TeeMode, workers: int) -> list[int]:
    """The workers whose output the terminal shows."""
    if mode == "none":
        return []
    return list(range(workers)) if mode == "all" else [CHIEF]
