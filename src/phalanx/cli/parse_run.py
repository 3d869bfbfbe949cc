"""What the words of `phalanx run` come to, wherever they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.cli import run_options as asked
from phalanx.cluster.debug_options import DebugOptions, parse_profile
from phalanx.cluster.task_types import DEFAULT_SHARDING
from phalanx.errors import ConfigurationError
from phalanx.launch.options import (
    GRACE,
    HANG_TIMEOUT,
    STARTUP_TIMEOUT,
    RunOptions,
    parse_devices,
    parse_env,
    parse_workers,
)


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """A run, and where its launchers are.

    Attributes:
        options: what each launcher is asked to do.
        hosts: as `--hosts` names them; None leaves it to the cluster.
        node_rank: which of them this is.
        cluster: whose variables tell of other hosts.
    """

    options: RunOptions
    hosts: str | None
    node_rank: int | None
    cluster: str


def parse_run_options(
    target: asked.Target,
    arguments: asked.Arguments = None,
    as_module: asked.AsModule = False,
    workers: asked.Workers = None,
    strategy: asked.Strategy = "auto",
    communication_backend: asked.Communication = "auto",
    ps: asked.Servers = None,
    variable_partitioner: asked.Sharding = DEFAULT_SHARDING,
    data_workers: asked.DataWorkers = 0,
    devices_per_worker: asked.Devices = None,
    threads_per_worker: asked.Threads = None,
    seed: asked.Seed = None,
    max_restarts: asked.MaxRestarts = 0,
    name: asked.Name = None,
    run_dir: asked.RunDir = Path("runs"),
    tee: asked.Tee = "chief",
    log_level: asked.Logging = "auto",
    hosts: asked.Hosts = None,
    node_rank: asked.NodeRank = None,
    cluster: asked.Cluster = "auto",
    rendezvous_timeout: asked.RendezvousTimeout = STARTUP_TIMEOUT,
    resume: asked.Resume = False,
    hang_timeout: asked.HangTimeout = HANG_TIMEOUT,
    grace_period: asked.GracePeriod = GRACE,
    env: asked.Env = None,
    debug: asked.Debug = False,
    debug_rank: asked.DebugRank = 0,
    fast_dev_run: asked.FastDevRun = None,
    overfit_batches: asked.OverfitBatches = None,
    profile: asked.Profile = None,
    profile_ranks: asked.ProfileRanks = None,
) -> RunCommand:
    """Read the flags, and refuse what cannot work.

    Raises:
        ConfigurationError: an option, or two of them together, cannot work.
    """
    least, most = (None, None) if workers is None else parse_workers(workers)
    options = RunOptions(
        target=target,
        arguments=tuple(arguments or ()),
        as_module=as_module,
        workers=most,
        min_workers=least,
        strategy=strategy,
        communication_backend=communication_backend,
        servers=ps,
        sharding=variable_partitioner,
        data_workers=data_workers,
        devices=parse_devices(devices_per_worker) if devices_per_worker is not None else None,
        seed=seed,
        max_restarts=max_restarts,
        name=name,
        run_dir=run_dir,
        tee=tee,  # type: ignore[arg-type]
        log_level=log_level,  # type: ignore[arg-type]
        threads=threads_per_worker,
        hang_timeout=hang_timeout,
        grace_period=grace_period,
        rendezvous_timeout=rendezvous_timeout,
        resume=resume,
        switches=DebugOptions(
            debug=debug,
            debug_rank=debug_rank,
            trial_batches=_at_least_one("--fast-dev-run", fast_dev_run),
            overfit_batches=_at_least_one("--overfit-batches", overfit_batches),
            profile=parse_profile(profile, profile_ranks),
        ),
        env=parse_env(env or []),
    )
    return RunCommand(options=options, hosts=hosts, node_rank=node_rank, cluster=cluster)


def _at_least_one(option: str, batches: int | None) -> int:
    if batches is not None and batches < 1:
        raise ConfigurationError(f"{option} must be at least 1; found {batches}.")
    return batches or 0
