import pytest

from phalanx.launcher.log_lines import LineAssembler, clip, is_startup_noise, without_style


@pytest.mark.parametrize(
    ("chunks", "lines", "current"),
    [
        ([b""], [], ""),
        ([b"one\ntwo\n"], ["one", "two"], ""),
        ([b"on", b"e\ntw"], ["one"], "tw"),
        ([b"\n\n"], ["", ""], ""),
        ([b"dos\r\nend\r\n"], ["dos", "end"], ""),
        ([b"1/3\r2/3\r3/3\n"], ["3/3"], ""),
        ([b"1/3\r2/3"], [], "2/3"),
        ([b"1/3\r", b"2/3\r"], [], "2/3"),
        ([b"1/3", b"\r", b"2/3"], [], "2/3"),
        ([b"\r1/3 \b\b\b\b\b\r2/3"], [], "2/3"),
        ([b"1/3 \b\b\b\b"], [], "1/3 "),
        ([b"\xc3", b"\xa9\n"], ["é"], ""),
        ([b"\xff\n"], ["\ufffd"], ""),
    ],
)
def test_lines(chunks, lines, current):
    assembler = LineAssembler()
    assert [line for chunk in chunks for line in assembler.feed(chunk)] == lines
    assert assembler.current == current


@pytest.mark.parametrize(
    ("chunk", "rest"),
    [(b"done\n", []), (b"no end", ["no end"]), (b"1/2\r2/2\r", ["2/2"]), (b"\xc3", ["\ufffd"])],
)
def test_close(chunk, rest):
    assembler = LineAssembler()
    assembler.feed(chunk)
    assert assembler.close() == rest
    assert assembler.close() == []


def test_a_bar_that_never_ends_stays_small():
    assembler = LineAssembler()
    for step in range(20_000):
        assembler.feed(b"\rstep %06d" % step)
    assert len(assembler._open) < 100_000
    assert assembler.current == "step 019999"


def test_without_style():
    assert without_style("\x1b[1m5/5\x1b[0m \x1b[32mok\x1b[K") == "5/5 ok"


@pytest.mark.parametrize(
    ("line", "width", "clipped"),
    [
        ("abcdef", 3, "abc"),
        ("abc", 3, "abc"),
        ("\x1b[1mabcdef\x1b[0m", 3, "\x1b[1mabc\x1b[0m"),
        ("ab\x1b[1mcd\x1b[0mef", 3, "ab\x1b[1mc\x1b[0m"),
        ("", 3, ""),
    ],
)
def test_clip(line, width, clipped):
    assert clip(line, width) == clipped


@pytest.mark.parametrize(
    ("line", "noise"),
    [
        ("WARNING: All log messages before absl::InitializeLog() is called are written", True),
        ("I0000 00:00:1795233283.259379   16491 port.cc:153] oneDNN custom", True),
        ("W0000 00:00:1795233283.259379   16491 port.cc:153] beware", False),
        ("E0000 00:00:1795233283.259379   16491 cuda.cc:1] other", False),
        ("loss: I0000 00:00:1.5 ", False),
        ("", False),
    ],
)
def test_startup_noise(line, noise):
    assert is_startup_noise(line) is noise
