"""The lease of a run's directory: one launcher for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phalanx.errors import ConfigurationError
from phalanx.lease.lease import Lease, LeaseTimes, acquire
from phalanx.lease.lease_dir import LocalLeaseDir
from phalanx.lease.owner import this_process
from phalanx.lease.records import LEASE_DIR


@contextmanager
def owned_run(run_dir: Path, announce: Callable[[str], None]) -> Iterator[Lease]:
    """Be the one launcher of a run.

    Args:
        run_dir: the run's directory.
        announce: says something to the user.

    Raises:
        ConfigurationError: another launcher runs it, or the directory cannot be written.
    """
    times = LeaseTimes()
    try:
        lease = acquire(
            LocalLeaseDir(run_dir / LEASE_DIR),
            this_process(),
            what=f"the run {run_dir}",
            advice="Wait for its end, end it with SIGTERM, or give this run another --name.",
            times=times,
            announce=announce,
        )
    except OSError as error:
        raise ConfigurationError(
            f"Cannot write in the run directory {run_dir}: {error.strerror or error}. Give another "
            "--run-dir."
        ) from error
    lease.keep_renewed(times)
    try:
        yield lease
    finally:
        lease.release()


def assert_owned(lease: Lease) -> None:
    """End a launcher that another one has replaced, as far as the last renewal saw.

    Raises:
        LeaseLostError: another launcher has taken over the run.
    """
    if lease.replaced_by is not None:
        with suppress(OSError):
            lease.check()
