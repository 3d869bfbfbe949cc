import pytest

from phalanx.cli.run_options import RunCommand
from phalanx.errors import ConfigurationError
from phalanx.launcher.env_file import collect_env, read_env_file


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "train.env"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("", {}),
        ("A=1\nB=2", {"A": "1", "B": "2"}),
        ("# A=1\n\n   # comment\n  A=1\n\t\n", {"A": "1"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("A=1\nA=2\n", {"A": "2"}),
        ("A=\nB==\n", {"A": "", "B": "="}),
        ("A= b \n", {"A": " b "}),
        ("A=\"b c\"\nB='d'\n", {"A": '"b c"', "B": "'d'"}),
        ("A=$HOME `id` # b\n", {"A": "$HOME `id` # b"}),
        ("\ufeffA=\u00e9\x85x\u2028y\n", {"A": "\u00e9\x85x\u2028y"}),
    ],
)
def test_lines_mean_what_they_mean_to_docker(file, text, env):
    assert read_env_file(file(text)) == env


@pytest.mark.parametrize(
    "line",
    ["s3cr3t", "=s3cr3t", "A B=s3cr3t", "export A=s3cr3t", "1A=s3cr3t", "A =s3cr3t", "A=s3cr3t\0"],
)
def test_a_bad_line_is_refused_by_its_number(file, line):
    path = file(f"# first\nA=1\n{line}\n")
    with pytest.raises(ConfigurationError, match=r"in line 3 of '.*train.env'") as raised:
        read_env_file(path)
    assert "s3cr3t" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(file, tmp_path):
    with pytest.raises(ConfigurationError, match=r"found '.*missing.env': No such file"):
        read_env_file(tmp_path / "missing.env")
    with pytest.raises(ConfigurationError, match="UTF-8") as raised:
        read_env_file(file(b"A=s3cr3t\xff"))
    assert raised.value.__suppress_context__


def test_env_takes_precedence_and_later_files_do(file, tmp_path):
    first = file("A=first\nB=first\nC=first\n")
    second = tmp_path / "second.env"
    second.write_text("B=second\nC=second\n")
    found = {"A": "first", "B": "second", "C": "given"}
    assert collect_env(["C=given"], [first, second]) == found
    command = RunCommand(target="train.py", env=["C=given"], env_from=[first, second])
    assert command.options.env == found
