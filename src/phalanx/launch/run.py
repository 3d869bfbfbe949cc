"""One run, from options to exit code."""

from __future__ import annotations

import json
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import OptionError
from phalanx.launch.failure import FailureRecord
from phalanx.launch.gang import (
    GangPlan,
    WorkerCommand,
    start_gang,
    worker_command,
    worker_specs,
)
from phalanx.launch.hardware import Machine, default_workers, share_out
from phalanx.launch.options import MAX_SEED, RunOptions, check_workers_fit
from phalanx.launch.ports import PortPicker, pick_free_ports
from phalanx.launch.provenance import git_commit, versions
from phalanx.launch.rootcause import Ending, describe, lost_its_port, root_cause
from phalanx.launch.rundir import create_run_dir, write_run_file
from phalanx.launch.script import check_module, check_script
from phalanx.launch.signals import SignalBox
from phalanx.launch.supervise import Patience, Supervisor
from phalanx.launch.tee import Tee, ranks_to_show

PORT_TRIES = 4


class WallClock:
    """The real time."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended.

    Attributes:
        exit_code: 0, the root cause's code, or 128 + the signal that ended the launcher.
        run_dir: where everything about it lies.
        report: the root cause in words; None when no worker failed.
        endings: how each worker of the last attempt ended.
    """

    exit_code: int
    run_dir: Path
    report: str | None = None
    endings: tuple[Ending, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a run touches outside itself, handed in so that tests can stand in for it."""

    environment: Mapping[str, str]
    machine: Machine
    output: TextIO
    argv: Sequence[str] = ()
    terminal: bool = False
    pick_ports: PortPicker = pick_free_ports
    command: WorkerCommand = worker_command
    patience: Patience = field(default_factory=Patience)
    announce: Callable[[str], None] = lambda text: None


def run(options: RunOptions, surroundings: Surroundings) -> RunResult:
    """Run the user's script on a gang of workers and wait for its end.

    Raises:
        OptionError: the options do not fit this machine.
        ScriptError: the script cannot be run; no worker was started.
        LaunchError: a worker process could not be started.
    """
    if options.as_module:
        check_module(options.target)
    else:
        check_script(Path(options.target))
    plan, options = make_plan(options, surroundings)
    record = _run_record(options, plan, surroundings)
    write_run_file(plan.run_dir, record)
    surroundings.announce(
        f"run {plan.run_dir.name}: {options.workers} worker{'s' * (options.workers != 1)}, "
        f"strategy {options.strategy}, seed {plan.seed}, in {_short(plan.run_dir)}"
    )
    with SignalBox((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) as signals:
        result = _attempts(options, plan, surroundings, signals)
    ended = {"exit_code": result.exit_code, "ended": _iso(time.time()), "report": result.report}
    write_run_file(plan.run_dir, {**record, "result": ended})
    return result


def make_plan(options: RunOptions, surroundings: Surroundings) -> tuple[GangPlan, RunOptions]:
    """Decide all that the options left open; make the run's directory."""
    workers = options.workers
    if workers is None:
        workers = default_workers(surroundings.machine, options.strategy, options.devices)
    check_workers_fit(workers, options.strategy, options.devices)
    environment = {**surroundings.environment, **options.env}
    backend = environment.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise OptionError(
            f"KERAS_BACKEND is {backend!r}, but Phalanx trains on TensorFlow. Unset it, or set "
            "it to 'tensorflow'."
        )
    shares = share_out(
        surroundings.machine,
        workers=workers,
        strategy=options.strategy,
        devices=options.devices,
        threads=options.threads,
    )
    seed = options.seed if options.seed is not None else secrets.randbelow(MAX_SEED + 1)
    plan = GangPlan(
        command=surroundings.command(
            options.target, options.arguments, as_module=options.as_module
        ),
        environment=environment,
        shares=shares,
        strategy=options.strategy,
        seed=seed,
        run_dir=create_run_dir(options.run_dir, options.name, datetime.now()),
        interactive=surroundings.terminal,
    )
    return plan, replace(options, workers=workers)


def _attempts(
    options: RunOptions, plan: GangPlan, surroundings: Surroundings, signals: SignalBox
) -> RunResult:
    for attempt in range(PORT_TRIES):
        specs = worker_specs(plan, attempt=attempt, pick_ports=surroundings.pick_ports)
        endings = _one_attempt(options, plan, specs, surroundings, signals)
        cause = root_cause(endings)
        if signals.first is not None:
            return RunResult(
                exit_code=128 + signals.first, run_dir=plan.run_dir, endings=tuple(endings)
            )
        if cause is None or not lost_its_port(cause) or attempt == PORT_TRIES - 1:
            break
        surroundings.announce("another program took a worker's port: starting again with new ones")
    if cause is None:
        return RunResult(exit_code=0, run_dir=plan.run_dir, endings=tuple(endings))
    return RunResult(
        exit_code=cause.shell_code,
        run_dir=plan.run_dir,
        report=describe(cause, endings, plan.paths(attempt).log(cause.rank)),
        endings=tuple(endings),
    )


def _one_attempt(
    options: RunOptions,
    plan: GangPlan,
    specs: Sequence[WorkerSpec],
    surroundings: Surroundings,
    signals: SignalBox,
) -> list[Ending]:
    paths = plan.paths(specs[0].attempt)
    tee = Tee(
        {rank: paths.log(rank) for rank in ranks_to_show(options.tee, len(specs))},
        surroundings.output,
        terminal=surroundings.terminal,
    )
    paths.directory.mkdir(parents=True, exist_ok=True)
    cluster = [asdict(spec) for spec in specs]
    (paths.directory / "cluster.json").write_text(json.dumps(cluster, indent=2) + "\n")
    supervisor = Supervisor(
        handles=start_gang(plan, specs),
        failure_of=lambda rank: FailureRecord.read(paths.error(rank)),
        clock=WallClock(),
        interrupted=signals.count,
        on_poll=tee.poll,
        patience=surroundings.patience,
    )
    try:
        return supervisor.run()
    finally:
        tee.close()


def _run_record(
    options: RunOptions, plan: GangPlan, surroundings: Surroundings
) -> dict[str, object]:
    return {
        "schema": 1,
        "name": plan.run_dir.name,
        "started": _iso(time.time()),
        "argv": list(surroundings.argv),
        "working_directory": str(Path.cwd()),
        "options": asdict(options),
        "seed": plan.seed,
        "shares": [asdict(share) for share in plan.shares],
        "machine": asdict(surroundings.machine),
        "python": sys.executable,
        "versions": versions(),
        "git": git_commit(Path.cwd()),
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
