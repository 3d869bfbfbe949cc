"""What all submitters are asked for: a run, as the launchers will be started."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from phalanx.errors import ConfigurationError
from phalanx.launcher.options import without_env_values
from phalanx.launcher.redaction import redact

MOST_LETTERS = 52
"""Kubernetes names a pod by the job's name and its index, in 63 letters."""
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class SubmitSpec:
    """One `phalanx run` on every host.

    Attributes:
        name: the run's and the job's name: lower case, digits and "-".
        target: the script, as the hosts find it, or a module's name.
        arguments: the script's own.
        as_module: run `target` as `python -m` would.
        hosts: how many launchers.
        workers_per_host: how many workers each starts; None leaves it to the host's GPUs.
        run_dir: the directory of all runs, which all hosts share.
        max_restarts: how often the leading launcher starts failed workers again.
        options: further options of `phalanx run`.

    Raises:
        ConfigurationError: one of them cannot work.
    """

    name: str
    target: str
    hosts: int
    run_dir: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False
    workers_per_host: int | None = None
    max_restarts: int = 0
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > MOST_LETTERS:
            raise ConfigurationError(
                f"A job's --name must be lower-case letters, digits and '-', at most "
                f"{MOST_LETTERS}, with a letter first and no '-' last; found {self.name!r}."
            )
        for what, value in (("hosts", self.hosts), ("workers", self.workers_per_host)):
            if value is not None and value < 1:
                raise ConfigurationError(f"A job needs at least 1 of its {what}; found {value}.")
        if self.max_restarts < 0:
            raise ConfigurationError(
                f"--max-restarts must be at least 0; found {self.max_restarts}."
            )

    @property
    def shown_options(self) -> str:
        """The further options as messages may show them, without secrets."""
        return shlex.join(redact(without_env_values(self.options)))

    def words(self, *placed: str) -> list[str]:
        """`phalanx run` with its options, but for the program itself.

        Args:
            placed: options that say where a launcher is and what it has there.
        """
        workers = self.workers_per_host
        return [
            "run",
            *placed,
            *("--name", self.name, "--resume"),
            *("--run-dir", self.run_dir),
            *(() if workers is None else ("--workers", str(self.hosts * workers))),
            *("--max-restarts", str(self.max_restarts)),
            *self.options,
            *(("-m",) if self.as_module else ()),
            self.target,
            *self.arguments,
        ]


def split_options(text: str) -> tuple[str, ...]:
    """`--strategy horovod --seed 7` as words.

    Raises:
        ConfigurationError: a quote does not end.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigurationError(
            # The text may hold secrets.
            f"--run-options must be options as a shell takes them; found a text with an error: "
            f"{error}."
        ) from error


def name_for(target: str, now: datetime) -> str:
    """A job's name after its script and the time."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(target).stem.lower()).strip("-")
    stem = stem if stem[:1].isalpha() else f"run-{stem}".strip("-")
    return f"{stem[: MOST_LETTERS - 16].strip('-')}-{now:%Y%m%d-%H%M%S}"
