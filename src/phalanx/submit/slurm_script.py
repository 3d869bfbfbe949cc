"""A run as a batch script for Slurm."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.errors import ConfigurationError
from phalanx.launcher.env_file import ENV_PREFIX, collect_env
from phalanx.launcher.options import GRACE, split_env
from phalanx.launcher.shared_options import (
    Arguments,
    AsModule,
    EnvFrom,
    MaxRestarts,
    Resume,
    Target,
)
from phalanx.submit.shared_options import GracePeriod, JobName, RunOptionsText, SharedRunDir
from phalanx.submit.submit_spec import SubmitSpec, name_for, split_options

MOST_REQUEUES = 100
MARGIN = 60
"""Seconds between the end of the workers' grace and the end of the job's time."""


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """What `phalanx submit slurm` is asked for: each field is an option.

    Raises:
        ConfigurationError: one of them holds a line break or cannot work.
    """

    target: Target
    arguments: Arguments = None
    as_module: AsModule = False
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of nodes.")] = 1
    workers_per_node: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Workers on each node.", show_default="one for each GPU there, else 1"
        ),
    ] = None
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs on each node.", show_default="none")
    ] = None
    cpus_per_node: Annotated[
        int | None,
        typer.Option(metavar="N", help="Cores on each node.", show_default="one for each worker"),
    ] = None
    mem: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of each node: 16G.")] = (
        None
    )
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time limit, in a format of sbatch.",
            show_default="the partition's",
        ),
    ] = None
    partition: Annotated[str | None, typer.Option(help="Slurm partition.")] = None
    account: Annotated[str | None, typer.Option(help="Slurm account to charge.")] = None
    sbatch_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Further option of sbatch (repeatable)."),
    ] = None
    setup: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINE", help="Line to run before the launcher: 'module load cuda' (repeatable)."
        ),
    ] = None
    name: JobName = None
    resume: Resume = False
    run_dir: SharedRunDir = Path("runs")
    max_restarts: MaxRestarts = 0
    env_from: EnvFrom = None
    grace_period: GracePeriod = int(GRACE)
    run_options: RunOptionsText = ""
    python: Annotated[
        str, typer.Option(help="Python interpreter on the nodes.", show_default="this one")
    ] = sys.executable
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch script and submit nothing.")
    ] = False

    def __post_init__(self) -> None:
        words = (self.mem, self.time, self.partition, self.account, self.output)
        for word in filter(None, (*words, *(self.sbatch_arg or ()))):
            if not word.isprintable():
                raise ConfigurationError(
                    f"What goes into a batch script is one line; found {word!r}."
                )
        for option, count in (("--gpus", self.gpus_per_node), ("--cpus", self.cpus_per_node)):
            if count is not None and count < 1:
                raise ConfigurationError(f"{option}-per-node must be at least 1; found {count}.")
        if self.grace_period < 1:
            raise ConfigurationError(
                f"--grace-period must be at least 1 second; found {self.grace_period}."
            )

    @cached_property
    def run(self) -> SubmitSpec:
        """The run."""
        return SubmitSpec(
            name=self.name or name_for(self.target, datetime.now()),
            target=self.target if self.as_module else str(Path(self.target).absolute()),
            arguments=tuple(self.arguments or ()),
            as_module=self.as_module,
            hosts=self.nodes,
            workers_per_host=self.workers_per_node,
            run_dir=str(self.run_dir.absolute()),
            max_restarts=self.max_restarts,
            options=split_env(split_options(self.run_options))[1],
        )

    @cached_property
    def env(self) -> dict[str, str]:
        """Variables of the workers' environment, which the script takes from `variables`."""
        in_options = split_env(split_options(self.run_options))[0]
        return collect_env(None, self.env_from) | in_options

    @property
    def output(self) -> str:
        """The file for what the launchers say."""
        return str(Path(self.run.run_dir, f"{self.run.name}.log"))

    @property
    def variables(self) -> dict[str, str]:
        """What the batch script must find in its environment; Slurm keeps it with the job.

        Their values may be keys: they are not in the script, which lies beside the runs, and in no
        command line, which `ps` and Slurm's accounting show. The names are others, so that what is
        for the workers does not act on Slurm's programs.
        """
        return {f"{ENV_PREFIX}{name}": value for name, value in self.env.items()}


def batch_script(job: SlurmJob) -> str:
    """The text for `sbatch`."""
    lines = [
        "#!/bin/bash",
        "# Written by phalanx submit slurm.",
        *(f"#SBATCH {directive}" for directive in _directives(job)),
        "",
        *(job.setup or ()),
        *([""] if job.setup else []),
        *(f': "${{{name}?must be exported to sbatch}}"' for name in job.variables),
        "# A launcher on each node: the first leads, the others start workers for it.",
        _srun(job),
        "code=$?",
        "",
        f"# {RESUME_EXIT_CODE}: all is saved, and the same command continues: the job's time was "
        "nearly over.",
        f'if [ "$code" -eq {RESUME_EXIT_CODE} ] && '
        f'[ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_REQUEUES} ]; then',
        '    scontrol requeue "$SLURM_JOB_ID" || true',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _directives(job: SlurmJob) -> list[str]:
    requested = {
        "job-name": job.run.name,
        "nodes": str(job.run.hosts),
        "ntasks-per-node": "1",
        "cpus-per-task": str(_cpus(job)),
        "gpus-per-node": None if job.gpus_per_node is None else str(job.gpus_per_node),
        "mem": job.mem,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "output": job.output,
        "open-mode": "append",
        "signal": f"USR1@{job.grace_period + MARGIN}",
    }
    given = [f"--{name}={_quoted(value)}" for name, value in requested.items() if value is not None]
    return [*given, "--requeue", *(job.sbatch_arg or ())]


def _srun(job: SlurmJob) -> str:
    step = ["srun", f"--nodes={job.run.hosts}", "--ntasks-per-node=1"]
    step.append(f"--cpus-per-task={_cpus(job)}")
    words = job.run.words("--cluster", "slurm", "--grace-period", str(job.grace_period))
    return shlex.join([*step, job.python, "-m", "phalanx", *words])


def _cpus(job: SlurmJob) -> int:
    default = job.run.workers_per_host or job.gpus_per_node or 1
    return job.cpus_per_node or default


def _quoted(value: str) -> str:
    """sbatch takes double quotes around a value with spaces."""
    return f'"{value}"' if " " in value else value
