r"""Shows what a launcher prints in the output of a cell, with a progress bar that stays one line.

Front ends of Jupyter overwrite a line after `\r`, but know no code that clears it:
https://jupyter-client.readthedocs.io/en/stable/messaging.html#streams-stdout-stderr-etc
"""

from __future__ import annotations

from phalanx.launcher.log_lines import LineAssembler, without_style
from phalanx.launcher.showing import Output

_CLEAR = "\x1b[2K"


class CellOutput:
    """Writes finished lines, and below them the line of the progress bar.

    Args:
        stream: the standard output of the kernel.
    """

    def __init__(self, stream: Output) -> None:
        self._stream = stream
        self._lines: dict[int, LineAssembler] = {}
        self._drawn = ""

    def feed(self, source: int, chunk: bytes) -> None:
        """Show more of the output.

        Args:
            source: a number for each stream of the launcher: lines of two are not mixed.
            chunk: what it has written.
        """
        lines = self._lines.setdefault(source, LineAssembler())
        finished = lines.feed(chunk)
        self._show(finished, lines.current if source == 0 else self._drawn)

    def close(self) -> None:
        """End the line of the progress bar."""
        rest = [line for lines in self._lines.values() for line in lines.close()]
        self._show(rest, "")

    def _show(self, finished: list[str], bar: str) -> None:
        text = ""
        for line in finished:
            text += self._over_drawn(_plain(line)) + "\n"
            self._drawn = ""
        bar = _plain(bar)
        if bar != self._drawn:
            text += self._over_drawn(bar)
            self._drawn = bar
        if text:
            self._stream.write(text)
            self._stream.flush()

    def _over_drawn(self, line: str) -> str:
        """The line over the one that is drawn, with blanks over what that one had more."""
        if not self._drawn:
            return line
        more = len(without_style(self._drawn)) - len(without_style(line))
        return f"\r{line}{' ' * more}"


def _plain(line: str) -> str:
    return line.replace(_CLEAR, "")
