"""A run as a job of Ray: the entrypoint is a driver, which starts launchers on the nodes."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.errors import ConfigurationError
from phalanx.launcher.env_file import ENV_PREFIX, collect_env
from phalanx.launcher.options import GRACE, parse_workers, split_env
from phalanx.launcher.shared_options import Arguments, AsModule, EnvFrom, Resume, Target
from phalanx.submit.ray_driver.plan import RayPlan
from phalanx.submit.shared_options import (
    GracePeriod,
    JobName,
    JobsDir,
    RunOptionsText,
    SharedRunDir,
)
from phalanx.submit.submit_spec import SubmitSpec, name_for, split_options

MARGIN = 30
"""Seconds beyond the grace of training before Ray kills a job that it was asked to stop."""


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """What `phalanx submit ray` is asked for: each field is an option.

    Raises:
        ConfigurationError: one of them cannot work.
    """

    target: Target
    arguments: Arguments = None
    as_module: AsModule = False
    address: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Address of Ray's job server; RAY_API_SERVER_ADDRESS takes precedence.",
        ),
    ] = "http://127.0.0.1:8265"
    workers: Annotated[
        str,
        typer.Option(
            metavar="N|MIN:MAX",
            help="Number of workers; with MIN:MAX, as many as fit.",
        ),
    ] = "1"
    cpus_per_worker: Annotated[
        float, typer.Option(metavar="N", help="CPUs of each worker, as Ray counts them.")
    ] = 1.0
    gpus_per_worker: Annotated[float, typer.Option(metavar="N", help="GPUs of each worker.")] = 0.0
    working_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory that Ray copies to every node; it contains SCRIPT.",
            show_default="SCRIPT is on all nodes",
        ),
    ] = None
    name: JobName = None
    resume: Resume = False
    run_dir: SharedRunDir = Path("runs")
    jobs_dir: JobsDir = Path("runs")
    max_restarts: Annotated[
        int, typer.Option(help="Maximum number of restarts on the same nodes.")
    ] = 0
    max_node_failures: Annotated[
        int, typer.Option(help="Maximum number of restarts after lost nodes.")
    ] = 10
    placement_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="With MIN:MAX, time to wait for MAX workers."),
    ] = 60.0
    env_from: EnvFrom = None
    grace_period: GracePeriod = int(GRACE)
    run_options: RunOptionsText = ""
    python: Annotated[
        str | None,
        typer.Option(help="Python interpreter on the nodes.", show_default="that of Ray"),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job as a command and submit nothing.")
    ] = False

    def __post_init__(self) -> None:
        if self.grace_period < 1:
            raise ConfigurationError(
                f"--grace-period must be at least 1 second; found {self.grace_period}."
            )
        _ = self.plan  # It checks the other options.

    @property
    def script(self) -> Path:
        """Where the script is here."""
        return (self.working_dir or Path()) / self.target

    @cached_property
    def run(self) -> SubmitSpec:
        """The run, with all its workers."""
        is_shipped = self.as_module or self.working_dir is not None
        return SubmitSpec(
            name=self.name or name_for(self.target, datetime.now()),
            target=self.target if is_shipped else str(self.script.absolute()),
            arguments=tuple(self.arguments or ()),
            as_module=self.as_module,
            hosts=parse_workers(self.workers)[1],
            run_dir=str(self.run_dir.absolute()),
            max_restarts=self.max_restarts,
            options=split_env(split_options(self.run_options))[1],
        )

    @cached_property
    def env(self) -> dict[str, str]:
        """Variables of the workers' environment."""
        in_options = split_env(split_options(self.run_options))[0]
        return collect_env(None, self.env_from) | in_options

    @cached_property
    def plan(self) -> RayPlan:
        """The driver's input."""
        least, most = parse_workers(self.workers)
        grace, threads = str(self.grace_period), str(max(1, int(self.cpus_per_worker)))
        return RayPlan(
            name=self.run.name,
            run_dir=self.run.run_dir,
            words=tuple(self.run.words("--grace-period", grace, "--threads-per-worker", threads)),
            min_launchers=most if least is None else least,
            max_launchers=most,
            cpus=self.cpus_per_worker,
            gpus=self.gpus_per_worker,
            max_node_failures=self.max_node_failures,
            placement_timeout=self.placement_timeout,
            python=self.python,
            directory=None if self.working_dir is not None else str(Path.cwd()),
        )

    def entrypoint(self) -> str:
        """The driver's command, for a shell on a node."""
        return shlex.join(
            [self.plan.python or "python", "-m", "phalanx.submit.ray_driver", self.plan.to_json()]
        )

    def runtime_env(self) -> dict[str, Any]:
        """What Ray prepares for the job, on every node that it uses."""
        where = (
            {} if self.working_dir is None else {"working_dir": str(self.working_dir.absolute())}
        )
        variables = {
            "RAY_JOB_STOP_WAIT_TIME_S": str(self.grace_period + MARGIN),
            "PYTHONUNBUFFERED": "1",
            # Not in the entrypoint, which Ray shows. The names are others, so that what is for the
            # workers does not act on Ray's processes.
            **{f"{ENV_PREFIX}{name}": value for name, value in self.env.items()},
        }
        return {**where, "env_vars": variables}


def shell_text(job: RayJob) -> str:
    """The same job as a command of Ray's own, with what comes of it."""
    plan = job.plan
    bundle = ", ".join(f"{name} {count:g}" for name, count in plan.bundle.items())
    count = (
        str(plan.max_launchers)
        if plan.min_launchers == plan.max_launchers
        else f"{plan.min_launchers} to {plan.max_launchers}"
    )
    program = plan.python or "python"
    words = [
        *("ray", "job", "submit", "--address", job.address, "--submission-id", plan.name),
        *("--no-wait", "--runtime-env-json", json.dumps(job.runtime_env()), "--"),
        *shlex.split(job.entrypoint()),
    ]
    lines = [
        f"# Ray places {count} bundles of {bundle}, spread over its nodes; in each is started",
        f"#   {shlex.join([program, '-m', 'phalanx', *plan.launcher(plan.max_launchers)])}",
        shlex.join(words),
    ]
    return "\n".join(lines) + "\n"
