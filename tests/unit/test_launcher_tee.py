import errno
import io
from pathlib import Path

import pytest

from phalanx.launcher.showing import Showing
from phalanx.launcher.tee import Tee, ranks_to_show

CLEAR = "\r\x1b[2K"


@pytest.fixture
def logs(tmp_path):
    return {rank: tmp_path / f"worker-{rank}.log" for rank in range(2)}


def tee_to(logs, *, terminal=False):
    output = io.StringIO()
    return Tee(logs, Showing(output), terminal=terminal, width=lambda: 24), output


def append(log, text):
    with log.open("a") as stream:
        stream.write(text)


def test_logs_that_are_not_there_yet(logs):
    tee, output = tee_to(logs)
    tee.poll()
    append(logs[1], "hello\n")
    tee.poll()
    assert output.getvalue() == "[worker 1] hello\n"


def test_a_log_that_cannot_be_read_for_now_is_shown_later(logs, monkeypatch):
    tee, output = tee_to(logs)
    append(logs[0], "a\n")
    tee.poll()
    append(logs[0], "b\n")
    append(logs[1], "c\n")
    real = Path.open

    class Stale:
        """A file whose first part can be read, on a server that then fails."""

        def __init__(self, path):
            self.file, self.reads = real(path, "rb"), 0

        def __enter__(self):
            return self

        def __exit__(self, *reason):
            self.file.close()

        def seek(self, position):
            self.file.seek(position)

        def read(self, size):
            self.reads += 1
            if self.reads > 1:
                raise OSError(errno.ESTALE, "stale file handle")
            return self.file.read(size)

    with monkeypatch.context() as patched:
        patched.setattr(
            Path,
            "open",
            lambda path, *a, **k: Stale(path) if path == logs[0] else real(path, *a, **k),
        )
        tee.poll()
    assert output.getvalue() == "[worker 0] a\n[worker 1] c\n"
    tee.close()
    assert output.getvalue() == "[worker 0] a\n[worker 1] c\n[worker 0] b\n"


def test_each_line_once_with_its_rank(logs):
    tee, output = tee_to(logs)
    append(logs[0], "a\nb")
    tee.poll()
    append(logs[0], "c\n")
    append(logs[1], "d\n")
    tee.poll()
    tee.poll()
    tee.close()
    assert output.getvalue() == "[worker 0] a\n[worker 0] bc\n[worker 1] d\n"


def test_a_bar_appears_once_where_it_cannot_be_redrawn(logs):
    tee, output = tee_to(logs)
    for text in ("1/2", "\r\x1b[1m2/2\x1b[0m", "\n"):
        append(logs[0], text)
        tee.poll()
    assert output.getvalue() == "[worker 0] 2/2\n"


def test_a_terminal_shows_the_chiefs_bar_below_the_lines(logs):
    tee, output = tee_to(logs, terminal=True)
    append(logs[0], "1/2")
    tee.poll()
    append(logs[1], "other\n9/9")
    tee.poll()
    append(logs[0], "\r2/2\n")
    tee.poll()
    assert output.getvalue() == (
        f"[worker 0] 1/2{CLEAR}[worker 1] other\n[worker 0] 1/2{CLEAR}[worker 0] 2/2\n"
    )


def test_a_bar_never_wraps(logs):
    tee, output = tee_to(logs, terminal=True)
    append(logs[0], "x" * 100)
    tee.poll()
    assert len(output.getvalue()) == 23


def test_the_last_words_need_no_newline(logs):
    tee, output = tee_to(logs)
    append(logs[0], "Killed")
    tee.close()
    assert output.getvalue() == "[worker 0] Killed\n"


@pytest.mark.parametrize(("mode", "ranks"), [("all", [0, 1, 2]), ("chief", [0]), ("none", [])])
def test_ranks(mode, ranks):
    assert ranks_to_show(mode, 3) == ranks
