r"""From a stream of bytes to lines a person can read, progress bars (`\r`) included."""

from __future__ import annotations

import codecs
import re

_STYLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ENOUGH = 1 << 16
# TensorFlow says these while it loads, before TF_CPP_MIN_LOG_LEVEL counts.
_STARTUP_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|I0000 00:00:\d+\.\d+ "
    r"|E0000 00:00:\d+\.\d+ .*failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit"
    r": UNKNOWN ERROR \(303\)"  # It found no CUDA driver: nothing is wrong on a machine without.
)


class LineAssembler:
    r"""Cuts a worker's output into finished lines and the line that is being written.

    A carriage return restarts the line, so of each finished line only the text after
    its last `\r` stays: what a terminal would show in the end. Backspaces, which Keras's
    progress bar prints before each `\r`, are dropped.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._open = ""

    @property
    def current(self) -> str:
        """The unfinished line, as a terminal would show it now."""
        return _after_return(self._open)

    def feed(self, chunk: bytes) -> list[str]:
        """Take more output; give the lines that it finished, without their ends."""
        *finished, self._open = (self._open + self._decoder.decode(chunk)).split("\n")
        if len(self._open) > _ENOUGH:  # A bar that runs for days must not fill the memory.
            self._open = _after_return(self._open)[-_ENOUGH:]
        return [_after_return(line) for line in finished]

    def close(self) -> list[str]:
        """The output has ended: an unfinished line is a line after all."""
        rest = _after_return(self._open + self._decoder.decode(b"", final=True))
        self._open = ""
        return [rest] if rest else []


def _after_return(line: str) -> str:
    line = line.rstrip("\r")  # "\r\n" is a line's end, and "50%\r" still shows 50%.
    return line.rsplit("\r", 1)[-1].replace("\b", "")


def is_startup_noise(line: str) -> bool:
    """Whether TensorFlow prints this line on every start, whatever its log level."""
    return _STARTUP_NOISE.match(line) is not None


def without_style(line: str) -> str:
    """The line without colours and other terminal control."""
    return _STYLE.sub("", line)


def clip(line: str, width: int) -> str:
    """At most `width` visible characters of the line; styles take no room and stay whole."""
    kept: list[str] = []
    room = width
    position = 0
    for style in _STYLE.finditer(line):
        text = line[position : style.start()][:room]
        room -= len(text)
        kept += [text, style.group()]
        position = style.end()
    kept.append(line[position:][:room])
    return "".join(kept)
