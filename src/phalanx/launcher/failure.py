"""The file in which a failed worker says what happened; written there, read here."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from phalanx.launcher.log_lines import without_style


def boot_id() -> str:
    """Names this host and its present start: processes with the same one share a clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """One worker's failure, in its own words.

    Attributes:
        rank: the worker.
        type: the exception's class name.
        module: that class's module; empty where unknown.
        message: the exception's text.
        traceback: the formatted traceback, the user's code on; empty for `sys.exit`.
        time: seconds since the epoch at which the exception reached us, for people.
        monotonic: the same moment by the monotonic clock of the worker's host; orders failures.
        boot: which host's clock that is, and of which start of it.
        exit_code: the code with which the worker means to end.
        step: the training step it was at, where known.
        advice: what may be done about it, in sentences; empty where unknown.
    """

    rank: int
    type: str
    message: str
    traceback: str
    time: float
    exit_code: int = 1
    step: int | None = None
    advice: str = ""
    monotonic: float | None = None
    boot: str = ""
    module: str = ""

    @property
    def summary(self) -> str:
        """The failure in one line: its type and the first line of its message."""
        if self.type == "SystemExit":
            extra = "" if self.message == str(self.exit_code) else f" ({self.message})"
            return f"the script ended with exit code {self.exit_code}{extra}"
        first = headline(self.message)
        return f"{self.type}: {first}" if first else self.type

    def write(self, path: Path) -> None:
        """Write it whole or not at all: the launcher may look at any moment."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> FailureRecord | None:
        """The record in `path`; None when there is none that can be read."""
        known = {field.name for field in fields(cls)}
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{key: value for key, value in document.items() if key in known})
        except (OSError, ValueError, TypeError, AttributeError):
            return None


_GRAPH = "Graph execution error"
_KERAS = "Exception encountered when "
"""What a layer's error begins with; its own message is the next line, in bold."""

_ENCOUNTERED = "Error encountered:"
_NODE_NOTES = re.compile(
    r"^\{\{function_node [^}]*\}\}\s*|\s*\[\[\{\{node .*|\s*\[Op:\w+\](?: name:.*)?\s*$"
)
_COUNTS = re.compile(
    r"\d+ (root error\(s\) found|successful operations|derived errors ignored)\.?$"
)
"""How TensorFlow frames what several nodes of a graph say."""

_ONE_OF_SEVERAL = re.compile(r"^  \(\d+\) [A-Z_]+:\s*")
_DETECTED = "Detected at "
_FRAME = re.compile(rf"  |{_DETECTED}|Node: |<stack traces unavailable>")
"""Where a node was made, which TensorFlow puts before what was wrong there."""


def headline(message: str) -> str:
    """What a message says first, in one line."""
    first = next((line for line in message.splitlines() if line.strip()), "")
    if first.startswith((_GRAPH, _KERAS)) or _COUNTS.match(first):
        return gist(message)
    return plain_line(first) or first.strip()


def gist(message: str) -> str:
    """The line of an error's message that says what was wrong."""
    lines_of_message = [plain_line(line) for line in message.splitlines()]
    lines_of_message = [line for line in lines_of_message if line and not _COUNTS.match(line)]
    for line in lines_of_message:
        if "assertion failed:" in line:
            return line[line.index("assertion failed:") :]
    if not lines_of_message:
        return "no message"
    if lines_of_message[0].startswith(_KERAS) and len(lines_of_message) > 1:
        # Keras calls a layer to learn its shapes, and puts that before what the layer raised.
        inner = 2 if lines_of_message[1].endswith(_ENCOUNTERED) and len(lines_of_message) > 2 else 1
        return f"{lines_of_message[inner]} ({lines_of_message[0].removeprefix(_KERAS).rstrip('.')})"
    if not lines_of_message[0].startswith((_GRAPH, _DETECTED)):
        return lines_of_message[0]
    lines = (_numberless(line) for line in message.splitlines())
    lines_of_traceback = [plain_line(line) for line in lines if not _FRAME.match(line)]
    lines_of_traceback = [
        line for line in lines_of_traceback if line and not line.startswith(_GRAPH)
    ]
    return next(
        (line for line in lines_of_traceback if not _COUNTS.match(line)), lines_of_message[0]
    )


def plain_line(line: str) -> str:
    """A line without what TensorFlow adds for those who know its graphs."""
    return _NODE_NOTES.sub("", _numberless(without_style(line))).strip()


def _numberless(line: str) -> str:
    return _ONE_OF_SEVERAL.sub("", line)
