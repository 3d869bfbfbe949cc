"""A run as a job of Ray: the entrypoint is a driver, which starts launchers on the nodes."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from phalanx.errors import ConfigurationError
from phalanx.submit.ray_driver.plan import RayPlan
from phalanx.submit.submit_spec import SubmitSpec

MARGIN = 30
"""Seconds beyond the grace of training before Ray kills a job that it was told to stop."""


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """A job for Ray's job server.

    Attributes:
        plan: what the driver is told.
        grace_period: seconds that training has to save and stop.
        working_dir: a directory that Ray brings to every node; None for none.
    """

    plan: RayPlan
    grace_period: int
    working_dir: str | None = None

    def entrypoint(self) -> str:
        """The driver's command, for a shell on a node."""
        return shlex.join(
            [self.plan.python or "python", "-m", "phalanx.submit.ray_driver", self.plan.to_json()]
        )

    def runtime_env(self) -> dict[str, Any]:
        """What Ray prepares for the job, on every node that it uses."""
        where = {} if self.working_dir is None else {"working_dir": self.working_dir}
        variables = {
            "RAY_JOB_STOP_WAIT_TIME_S": str(self.grace_period + MARGIN),
            "PYTHONUNBUFFERED": "1",
        }
        return {**where, "env_vars": variables}


def launcher_words(run: SubmitSpec, *, cpus: float, grace_period: int) -> tuple[str, ...]:
    """The words of each launcher, for a plan.

    Args:
        run: the run.
        cpus: CPUs of each bundle.
        grace_period: seconds that training has to save and stop.

    Raises:
        ConfigurationError: that is no time at all.
    """
    if grace_period < 1:
        raise ConfigurationError(f"--grace-period must be at least 1 second; found {grace_period}.")
    threads = max(1, int(cpus))
    return tuple(
        run.words("--grace-period", str(grace_period), "--threads-per-worker", str(threads))
    )


def shell_text(job: RayJob, address: str) -> str:
    """The same job as a command of Ray's own, with what comes of it."""
    plan = job.plan
    bundle = ", ".join(f"{name} {count:g}" for name, count in plan.bundle.items())
    count = str(plan.most) if plan.least == plan.most else f"{plan.least} to {plan.most}"
    program = plan.python or "python"
    words = [
        *("ray", "job", "submit", "--address", address, "--submission-id", plan.name),
        *("--no-wait", "--runtime-env-json", json.dumps(job.runtime_env()), "--"),
        *shlex.split(job.entrypoint()),
    ]
    lines = [
        f"# Ray places {count} bundles of {bundle}, spread over its nodes; in each is started",
        f"#   {shlex.join([program, '-m', 'phalanx', *plan.launcher(plan.most)])}",
        shlex.join(words),
    ]
    return "\n".join(lines) + "\n"
