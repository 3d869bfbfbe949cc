"""One run, from options to exit code."""

from __future__ import annotations

import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.cluster.strategies import check_gpus, uses_parameter_servers
from phalanx.errors import ConfigurationError, LaunchError, UnavailableError
from phalanx.launcher.agent import Agent, WorkerGroupRunner
from phalanx.launcher.context import LaunchContext
from phalanx.launcher.data_servers import DataServers
from phalanx.launcher.options import MAX_SEED, RunOptions, without_env_values
from phalanx.launcher.preemption import SIGNALS
from phalanx.launcher.ps_tasks import add_chief_and_ps
from phalanx.launcher.redaction import redact
from phalanx.launcher.rendezvous.follower import run_follower
from phalanx.launcher.rendezvous.leader import Leader, forward_signals, nodes_of, run_leader
from phalanx.launcher.rendezvous.node import allocate_addresses
from phalanx.launcher.resources import (
    Machine,
    ResourceAllocation,
    allocate_over_nodes,
    idle_gpus,
    share_gpus,
)
from phalanx.launcher.run_dir import (
    check_run_dir,
    create_run_dir,
    earlier_run,
    git_commit,
    versions,
    write_run_file,
)
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.run_result import RunResult, print_summary
from phalanx.launcher.script_check import check_module, check_script
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import MonotonicClock
from phalanx.launcher.trackers import (
    FINISH_SECONDS,
    INTERRUPTED_SECONDS,
    UPLOAD_SECONDS,
    TrackerProcesses,
    check_installed,
)
from phalanx.launcher.worker_group import WorkerGroupSpec
from phalanx.lease.lease import Lease, LeaseTimes, acquire
from phalanx.lease.lease_dir import LocalLeaseDir
from phalanx.lease.owner import this_process
from phalanx.lease.records import LEASE_DIR
from phalanx.monitoring.event_log import EventLog, launcher_records_path
from phalanx.monitoring.events import RunEnd, RunStart


def run(options: RunOptions, context: LaunchContext) -> RunResult:
    """Run the user's script on a worker group of workers and wait for its end.

    Raises:
        ConfigurationError: the options do not fit this machine.
        ScriptError: the script cannot be run; no worker was started.
        UnavailableError: another launcher uses the run, or another host does not answer.
        LaunchError: a worker process could not be started.
    """
    if options.as_module:
        check_module(options.target)
    else:
        check_script(Path(options.target))
    node_group = context.node_group
    if node_group is not None:
        _check_addresses(node_group, options)
        context.announce(f"{node_group.kind}: {node_group.why}")
    if node_group is None or len(node_group.hosts) == 1:
        result = _run(options, context, None)
        print_summary(result, options.switches, context.announce)
        return result
    if not node_group.is_leader:
        return run_follower(options, context, node_group)
    with run_leader(options, context, node_group) as leader:
        result = _run(options, context, leader)
        leader.end(result.exit_code, result.report)
    print_summary(result, options.switches, context.announce)
    return result


def _check_addresses(node_group: ClusterEnvironment, options: RunOptions) -> None:
    """Refuse hosts by IPv6 address under Horovod, whose rendezvous server has IPv4 only.

    Raises:
        ConfigurationError: names the first of them.
    """
    found = next((host for host in node_group.hosts if ":" in host), None)
    if found is not None and options.strategy == "horovod":
        raise ConfigurationError(
            f"Horovod connects hosts by IPv4, and --hosts has the IPv6 address {found}. Give names "
            "or IPv4 addresses, or another --strategy."
        )


def _run(options: RunOptions, context: LaunchContext, leader: Leader | None) -> RunResult:
    check_installed(options.trackers)
    catcher = SignalCatcher((signal.SIGINT, signal.SIGHUP, *SIGNALS))
    machines = [context.machine]
    if leader is not None:
        machines += _gather(leader, catcher)
        machines = share_gpus(machines, leader.host_ids, context.environment)
    plan, options = make_plan(options, context, machines)
    with _owned_run(plan.run_dir, context.announce) as lease:
        check_run_dir(plan.run_dir, resume=options.resume)
        plan = replace(plan, run_id=lease.id)
        return _run_owned(options, plan, context, leader, machines, lease, catcher)


def _gather(leader: Leader, catcher: SignalCatcher) -> list[Machine]:
    """The resources of the other hosts; a signal ends the wait for them.

    Raises:
        UnavailableError: some did not connect in time, or a signal came.
    """
    with catcher as signals:
        leader.is_interrupted = partial(forward_signals, leader, signals)
        try:
            return leader.gather()
        except UnavailableError as error:
            if signals.first is not None:
                error.exit_code = 128 + signals.first
            raise


def _run_owned(
    options: RunOptions,
    plan: WorkerGroupSpec,
    context: LaunchContext,
    leader: Leader | None,
    machines: Sequence[Machine],
    lease: Lease,
    catcher: SignalCatcher,
) -> RunResult:
    nodes = nodes_of(plan, context, leader)
    if options.data_workers:
        addresses = allocate_addresses(nodes, [0] * (1 + options.data_workers))
        plan = replace(plan, data_addresses=addresses)
    record = _run_record(options, plan, context)
    write_run_file(plan.run_dir, record)
    on = "resuming run" if AttemptPaths.next(plan.run_dir) else "run"
    context.announce(
        f"{on} {plan.run_dir.name}: {options.workers} worker{'s' * (options.workers != 1)}"
        f"{f' on {len(machines)} hosts' * (len(machines) > 1)}, strategy {options.strategy}, "
        f"seed {plan.seed}, in {_short(plan.run_dir)}"
    )
    for notice in _about_idle_gpus(machines, plan):
        context.announce(notice)
    events = EventLog.at(launcher_records_path(plan.run_dir))
    events.append(
        RunStart(
            name=plan.run_dir.name,
            workers=len(plan.resources),
            strategy=plan.strategy,
            seed=plan.seed,
            argv=tuple(_words(options, context)),
        )
    )
    servers = DataServers(
        plan.data_addresses,
        environment=plan.environment,
        run_dir=plan.run_dir,
        announce=context.announce,
    )
    trackers = TrackerProcesses(
        names=() if options.switches.trial_batches else options.trackers,
        project=options.tracker_project,
        artifacts=options.tracker_artifacts,
        environment=plan.environment,
        run_dir=plan.run_dir,
        announce=context.announce,
    )
    with catcher as signals, trackers:
        try:
            with servers:
                runner = WorkerGroupRunner(
                    options=options,
                    plan=plan,
                    events=events,
                    signals=signals,
                    clock=MonotonicClock(),
                    output=context.output,
                    terminal=context.terminal,
                    timeouts=replace(context.timeouts, checkpoint=options.grace_period),
                    announce=context.announce,
                    data_servers=servers,
                    nodes=nodes,
                    on_each_poll=partial(_on_each_poll, leader, signals, lease, trackers),
                )
                result = Agent(runner=runner).run()
        except LaunchError as error:
            events.append(RunEnd(exit_code=error.exit_code, report=str(error)))
            _finish_trackers(trackers, signals)
            raise
        _assert_owned(lease)
        _write_result(result, record, events, context.announce)
        _finish_trackers(trackers, signals)
        return result


def _write_result(
    result: RunResult,
    record: Mapping[str, object],
    events: EventLog,
    announce: Callable[[str], None],
) -> None:
    events.append(RunEnd(exit_code=result.exit_code, report=result.report))
    events.close()
    ended = {"exit_code": result.exit_code, "ended": _iso(time.time()), "report": result.report}
    try:
        write_run_file(result.run_dir, {**record, "result": ended})
    except OSError as error:  # The run itself has ended as it has.
        path = result.run_dir / "run.json"
        announce(f"could not write the result to {path}: {error.strerror or error}")


def _finish_trackers(trackers: TrackerProcesses, signals: SignalCatcher) -> None:
    """Give the trackers time for the rest; less after a signal, and none after another one."""
    before = signals.count()
    trackers.finish(
        seconds=INTERRUPTED_SECONDS if before else FINISH_SECONDS,
        upload_seconds=INTERRUPTED_SECONDS if before else UPLOAD_SECONDS,
        is_interrupted=lambda: signals.count() > before,
    )


def _on_each_poll(
    leader: Leader | None, signals: SignalCatcher, lease: Lease, trackers: TrackerProcesses
) -> None:
    _assert_owned(lease)
    forward_signals(leader, signals)
    trackers.poll()


def make_plan(
    options: RunOptions, context: LaunchContext, machines: Sequence[Machine]
) -> tuple[WorkerGroupSpec, RunOptions]:
    """Decide all that the options left open; make the run's directory."""
    environment = {**context.environment, **options.env}
    backend = environment.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise ConfigurationError(
            f"KERAS_BACKEND is {backend!r}, but Phalanx trains on TensorFlow. Unset it, or set "
            "it to 'tensorflow'."
        )
    resources, node_ranks = allocate_over_nodes(
        machines,
        workers=options.workers,
        strategy=options.strategy,
        devices=options.devices,
        threads=options.threads,
    )
    servers = (options.servers or 1) if uses_parameter_servers(options.strategy) else 0
    on_cpus = all(
        allocation.devices is not None and allocation.devices.kind == "cpu"
        for allocation in resources
    )
    check_gpus(options.communication_backend, 0 if on_cpus else len(context.machine.gpus))
    workers = len(resources)
    if servers:
        resources = add_chief_and_ps(resources, servers)
        node_ranks = [0, *node_ranks, *(number % len(machines) for number in range(servers))]
    run_dir = create_run_dir(options.run_dir, options.name, datetime.now(), resume=options.resume)
    before = earlier_run(run_dir) or {}
    drawn = before.get("seed", secrets.randbelow(MAX_SEED + 1))
    plan = WorkerGroupSpec(
        command=context.command(options.target, options.arguments, as_module=options.as_module),
        environment=environment,
        resources=resources,
        node_ranks=node_ranks,
        strategy=options.strategy,
        communication_backend=options.communication_backend,
        reduction=options.reduction,
        servers=servers,
        sharding=options.sharding,
        seed=drawn if options.seed is None else options.seed,
        run_dir=run_dir,
        interactive=context.terminal,
        log_level=options.log_level,
        switches=options.switches,
        sync=options.sync,
        sync_batchnorm=options.sync_batchnorm,
        independent=options.independent,
    )
    return plan, replace(options, workers=workers)


def _about_idle_gpus(machines: Sequence[Machine], plan: WorkerGroupSpec) -> list[str]:
    """A sentence for each machine on which GPUs are left over."""
    shares_of: list[list[ResourceAllocation]] = [[] for _ in machines]
    for rank, allocation in enumerate(plan.resources):
        shares_of[plan.node_of(rank)].append(allocation)
    idle = [idle_gpus(*each) for each in zip(machines, shares_of, strict=True)]
    return [sentence for sentence in idle if sentence]


def _run_record(
    options: RunOptions, plan: WorkerGroupSpec, context: LaunchContext
) -> dict[str, object]:
    return {
        "schema": 1,
        "name": plan.run_dir.name,
        "started": _iso(time.time()),
        "argv": _words(options, context),
        "working_directory": str(Path.cwd()),
        # Values may be keys; the same command sets them again.
        "options": {
            **asdict(options),
            "arguments": redact(options.arguments),
            "env": sorted(options.env),
        },
        "seed": plan.seed,
        "shares": [asdict(allocation) for allocation in plan.resources],
        "machine": asdict(context.machine),
        "python": sys.executable,
        "versions": versions(),
        "git": git_commit(Path.cwd()),
    }


def _words(options: RunOptions, context: LaunchContext) -> list[str]:
    """The launcher's command line, as it may be written down."""
    words = list(context.argv)
    own = len(words) - len(options.arguments)  # The rest is the script's.
    return [*redact(without_env_values(words[:own])), *redact(words[own:])]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


@contextmanager
def _owned_run(run_dir: Path, announce: Callable[[str], None]) -> Iterator[Lease]:
    """Hold the lease of a run's directory: one launcher for a run.

    Args:
        run_dir: the run's directory.
        announce: prints a message for the user.

    Raises:
        UnavailableError: another launcher runs it.
        ConfigurationError: the directory cannot be written.
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


def _assert_owned(lease: Lease) -> None:
    """End this launcher if another one has replaced it, by the last renewal of the lease.

    Raises:
        LeaseLostError: another launcher has taken over the run.
    """
    if lease.replaced_by is not None:
        with suppress(OSError):
            lease.check()
