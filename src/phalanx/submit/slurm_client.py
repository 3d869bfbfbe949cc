"""Slurm's own programs, for a batch script and for its job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phalanx.errors import LaunchError
from phalanx.monitoring.durable_files import PRIVATE_FILE, write_durably
from phalanx.submit.job_registry import SubmittedJob
from phalanx.submit.slurm_script import SlurmJob, batch_script
from phalanx.submit.subprocess_client import Call

STATES = "%T %M %D %R"
"""State, time, number of nodes, and the nodes or why it waits."""


def submit(job: SlurmJob, run_dir: Path, call: Call) -> SubmittedJob:
    """Write the batch script beside the runs and hand it to Slurm.

    Raises:
        LaunchError: Slurm did not take it.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / f"{job.run.name}.sbatch"
    write_durably(path, batch_script(job), mode=PRIVATE_FILE)  # The script's arguments are in it.
    answer = call(["sbatch", "--parsable", str(path)], job.variables).strip()
    number = answer.partition(";")[0]  # "17;cluster" where there are several
    if not number.isdecimal():
        raise LaunchError(f"sbatch must print the job's number; found {answer!r}.")
    submitted = SubmittedJob(kind="slurm", job=number, name=job.run.name, log=job.output)
    submitted.write(run_dir)
    return submitted


def status(submitted: SubmittedJob, call: Call) -> str:
    """What Slurm says of the job; it forgets jobs some minutes after their end."""
    words: Sequence[str] = ("squeue", "--noheader", "--jobs", submitted.job, "--format", STATES)
    try:
        output = call(words).strip()
    except LaunchError as error:
        if "Invalid job id" not in str(error):
            raise
        output = ""
    return output or "ended: see phalanx report, and the log"


def cancel(submitted: SubmittedJob, call: Call) -> None:
    """End the job: its launchers get SIGTERM, and save if training listens.

    Raises:
        LaunchError: Slurm did not.
    """
    call(["scancel", submitted.job])
