"""Ray's job server, by Ray's own client: submit, look at and stop jobs.

The client is an optional extra: `pip install "phalanx[ray]"`.
https://docs.ray.io/en/latest/cluster/running-applications/job-submission/sdk.html
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tenacity import Retrying, retry_if_exception_message, stop_after_attempt, wait_fixed

from phalanx.errors import LaunchError
from phalanx.submit.job_registry import SubmittedJob
from phalanx.submit.ray_command import RayJob

NO_AGENT = r".*No available agent.*"
"""A cluster that has just started refuses jobs with this until an agent has registered."""


def connect(address: str) -> Any:
    """The client of the job server at an address.

    Raises:
        LaunchError: Ray is not installed here, or there is no such server.
    """
    try:
        submission = import_module("ray.job_submission")
        return submission.JobSubmissionClient(address)
    except ImportError as error:
        raise LaunchError(
            "Asked to speak to Ray; the Python package ray is not installed. Install it: pip "
            'install "phalanx[ray]" (or give what --dry-run prints to ray job submit elsewhere).'
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LaunchError(
            f"Asked to speak to Ray's job server at {address}; found none that answers ({error}). "
            "Give --address http://HEAD:8265, where HEAD is the cluster's first node, and see "
            "that Ray was installed there as ray[default]."
        ) from error


def submit(
    job: RayJob, client: Any, *, sleep: Callable[[float], None] = time.sleep
) -> SubmittedJob:
    """Hand the job over, and note it.

    Args:
        job: what was asked for.
        client: as `connect` gives it.
        sleep: waits, while the cluster has no agent yet.

    Raises:
        LaunchError: Ray did not take it.
    """
    with _translate_errors():
        taken = {known.submission_id for known in client.list_jobs()}
        names = itertools.chain(
            [job.plan.name], (f"{job.plan.name}-{number}" for number in itertools.count(2))
        )  # A run that is resumed has been a job before.
        tries = Retrying(
            retry=retry_if_exception_message(match=NO_AGENT),
            stop=stop_after_attempt(30),
            wait=wait_fixed(1.0),
            sleep=sleep,
            reraise=True,
        )
        submitted = tries(
            client.submit_job,
            entrypoint=job.entrypoint(),
            submission_id=next(name for name in names if name not in taken),
            runtime_env=job.runtime_env(),
        )
    made = SubmittedJob(kind="ray", job=submitted, name=job.plan.name, address=job.address)
    made.write(job.jobs_dir)
    return made


def status(job: SubmittedJob, client: Any) -> str:
    """Ray's word for it, and why."""
    with _translate_errors():
        info = client.get_job_info(job.job)
    return f"{info.status.value} {info.message or ''}".strip()


def logs(job: SubmittedJob, client: Any) -> str:
    """What the driver and the launchers have said."""
    with _translate_errors():
        return str(client.get_job_logs(job.job))


def cancel(job: SubmittedJob, client: Any) -> None:
    """Request Ray to stop the job: training saves and stops, if it handles the signal."""
    with _translate_errors():
        client.stop_job(job.job)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except (ConnectionError, RuntimeError) as error:
        raise LaunchError(f"Ray's job server refused what was asked: {error}") from error
