"""The workers' environment variables: of options, of files and from a cluster's own programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from phalanx.errors import ConfigurationError
from phalanx.launcher.options import is_variable_name, parse_env

ENV_PREFIX = "PHALANX_ENV_"
"""Of variables that carry the workers' variables through a cluster's own programs."""


def collect_env(items: Sequence[str] | None, files: Sequence[Path] | None) -> dict[str, str]:
    """The variables of every `--env-from FILE`, and of every `--env`, which take precedence.

    Raises:
        ConfigurationError: an item or a line is not NAME=VALUE, or a file cannot be read.
    """
    env: dict[str, str] = {}
    for path in files or ():
        env |= read_env_file(path)
    return env | parse_env(list(items or ()))


def carried_env(environment: Mapping[str, str]) -> dict[str, str]:
    """The workers' variables that `phalanx submit` gave to the cluster, under their own names."""
    return {
        name.removeprefix(ENV_PREFIX): value
        for name, value in environment.items()
        if name.startswith(ENV_PREFIX)
    }


def read_env_file(path: Path) -> dict[str, str]:
    """The variables of a file in the format of `docker run --env-file`.

    Lines are `NAME=VALUE`, empty, or start with `#`. A value is the rest of its line: quotes, `$`,
    `#` and spaces in it are part of it.

    Raises:
        ConfigurationError: a line is none of these, or the file cannot be read. The message names
            the line by its number: what is in it may be a secret.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(
            f"--env-from must be a file that can be read; found {str(path)!r}: {error.strerror}."
        ) from error
    except UnicodeDecodeError:
        # Not chained: that error holds the file's bytes.
        raise ConfigurationError(
            f"--env-from must be a text file in UTF-8; found other bytes in {str(path)!r}."
        ) from None
    return dict(_variables(path, text))


def _variables(path: Path, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.removesuffix("\r").lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not is_variable_name(name) or "\0" in value:
            problem = (
                "no '='"
                if not equals
                else "a value with a NUL character"
                if is_variable_name(name)
                else "a name that is not letters, digits and '_'"
            )
            raise ConfigurationError(
                f"A line of --env-from must be NAME=VALUE or a comment; found {problem} in line "
                f"{number} of {str(path)!r}."
            )
        yield name, value
