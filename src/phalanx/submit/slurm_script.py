"""A run as a batch script for Slurm."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.errors import ConfigurationError
from phalanx.submit.submit_spec import SubmitSpec

ENV_PREFIX = "PHALANX_ENV_"
MOST_REQUEUES = 100
MARGIN = 60
"""Seconds between the end of the workers' grace and the end of the job's time."""


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """What `phalanx submit slurm` is asked for.

    Attributes:
        run: the run.
        python: the program that starts launchers: Python's path on the nodes.
        gpus_per_node: GPUs on each node.
        cpus_per_node: cores for the launcher of each node and its workers; None takes one for
            each worker.
        memory: memory on each node, as Slurm writes it: 16G.
        time: as Slurm writes it: 1-12:00:00.
        partition: where to run.
        account: who pays.
        directives: further words after #SBATCH.
        output: the file for what the launchers say.
        grace_period: seconds that training has to save and stop before the time is over.
        modules: lines to run first, such as `module load cuda`.
        env: variables of the workers' environment, which the script takes from `variables`.

    Raises:
        ConfigurationError: one of them holds a line break or cannot work.
    """

    run: SubmitSpec
    python: str
    output: str
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    memory: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    directives: tuple[str, ...] = ()
    grace_period: int = 60
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = (self.memory, self.time, self.partition, self.account, self.output)
        for word in filter(None, (*words, *self.directives)):
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

    @property
    def variables(self) -> dict[str, str]:
        """What the batch script must find in its environment; Slurm keeps it with the job.

        Their values are not in the script, which lies beside the runs: they may be keys. The names
        are others, so that what is for the workers does not act on Slurm's programs.
        """
        return {f"{ENV_PREFIX}{name}": value for name, value in self.env.items()}


def batch_script(job: SlurmJob) -> str:
    """The text for `sbatch`."""
    lines = [
        "#!/bin/bash",
        "# Written by phalanx submit slurm.",
        *(f"#SBATCH {directive}" for directive in _directives(job)),
        "",
        *job.modules,
        *([""] if job.modules else []),
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
    asked = {
        "job-name": job.run.name,
        "nodes": str(job.run.hosts),
        "ntasks-per-node": "1",
        "cpus-per-task": str(_cpus(job)),
        "gpus-per-node": None if job.gpus_per_node is None else str(job.gpus_per_node),
        "mem": job.memory,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "output": job.output,
        "open-mode": "append",
        "signal": f"USR1@{job.grace_period + MARGIN}",
    }
    given = [f"--{name}={_quoted(value)}" for name, value in asked.items() if value is not None]
    return [*given, "--requeue", *job.directives]


def _srun(job: SlurmJob) -> str:
    step = ["srun", f"--nodes={job.run.hosts}", "--ntasks-per-node=1"]
    step.append(f"--cpus-per-task={_cpus(job)}")
    program = [job.python, "-m", "phalanx"]
    command, *words = job.run.words("--cluster", "slurm", "--grace-period", str(job.grace_period))
    if not job.env:
        return shlex.join([*step, *program, command, *words])
    # Slurm's accounting keeps srun's words: a shell on each node puts the values in.
    given = " ".join(f'--env {name}="${ENV_PREFIX}{name}"' for name in job.env)
    launcher = f"exec {shlex.join([*program, command])} {given} {shlex.join(words)}"
    return shlex.join([*step, "bash", "-c", launcher])


def _cpus(job: SlurmJob) -> int:
    default = job.run.workers_per_host or job.gpus_per_node or 1
    return job.cpus_per_node or default


def _quoted(value: str) -> str:
    """sbatch takes double quotes around a value with spaces."""
    return f'"{value}"' if " " in value else value
