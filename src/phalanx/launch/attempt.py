"""One start of a run's gang: from free ports to the end of every worker."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from phalanx.cluster.spec import WorkerSpec
from phalanx.launch.aside import remove_aside
from phalanx.launch.data_servers import DataServers
from phalanx.launch.elastic import GangSize, GrowthWatch
from phalanx.launch.failure import FailureRecord
from phalanx.launch.gang import GangPlan, start_gang, worker_specs
from phalanx.launch.hang import HangWatch
from phalanx.launch.hosts.home import Home, find_addresses
from phalanx.launch.hosts.remote import RemoteWorker
from phalanx.launch.journal import LauncherJournal
from phalanx.launch.options import RunOptions
from phalanx.launch.preemption import SIGNALS
from phalanx.launch.process import WorkerHandle
from phalanx.launch.rootcause import Ending
from phalanx.launch.servants import Replacements
from phalanx.launch.showing import Output
from phalanx.launch.signals import SignalBox
from phalanx.launch.supervise import Clock, Patience, Supervisor
from phalanx.launch.tee import Tee, ranks_to_show


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One attempt.

    Attributes:
        endings: how each worker ended.
        hang: who was where when it stood still; None where it did not.
        seen: who was where when a collective had timed out; None where none had.
        to_grow: whether it was asked to stop, so as to grow.
        seconds: how long it took.
    """

    endings: Sequence[Ending]
    hang: str | None
    seen: str | None
    to_grow: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Gangs:
    """Starts a run's gangs, one after the other.

    Attributes:
        options: what was asked.
        plan: how the gang is started.
        journal: records what happens.
        signals: those that reached the launcher.
        clock: the time.
        output: where the workers' lines are shown.
        terminal: whether that is a terminal.
        patience: how long to wait for what.
        data_servers: read data for the workers, where asked.
        homes: where workers are started.
        look_after: done at each look at the workers.
        announce: says something to the user.
    """

    options: RunOptions
    plan: GangPlan
    journal: LauncherJournal
    signals: SignalBox
    clock: Clock
    output: Output
    terminal: bool
    patience: Patience
    announce: Callable[[str], None]
    data_servers: DataServers
    homes: Sequence[Home]
    look_after: Callable[[], None] = lambda: None

    def run(self, attempt: int, size: GangSize) -> Ran:
        """Start the gang once and wait for its end."""
        began = self.clock.now()
        plan = self.plan.of(size.members)
        homes = [plan.home_of(rank) for rank in range(len(plan.shares))]
        meets = homes[:1] if plan.compares else []
        found = find_addresses(self.homes, [*homes, *meets]) if plan.is_networked else ()
        addresses, meeting = found[: len(homes)], "".join(found[len(homes) :])
        specs = worker_specs(plan, attempt=attempt, addresses=addresses, meeting=meeting)
        paths = self.plan.paths(attempt)
        tee = Tee(
            {rank: paths.log(rank) for rank in ranks_to_show(self.options.tee, len(specs))},
            self.output,
            terminal=self.terminal,
        )
        paths.directory.mkdir(parents=True, exist_ok=True)
        _write_cluster(paths.directory / "cluster.json", specs)
        start = partial(self._start, plan)
        handles = start_gang(specs, start)
        if self.options.max_restarts:
            # Now, at low priority, so that it does not slow the start.
            for home, spec in {plan.home_of(spec.rank): spec for spec in specs}.items():
                self.homes[home].get_ready(spec, plan.shares[spec.rank].gpus)
        watch = HangWatch(
            timeout=self.options.hang_timeout,
            handles=handles,
            paths=paths,
            now=self.clock.now,
            sleep=self.clock.sleep,
            on_stall=partial(self._say_stall, attempt),
        )
        growth = GrowthWatch(size, self.plan.run_dir, now=self.clock.now)
        supervisor = Supervisor(
            handles=handles,
            failure_of=lambda rank: FailureRecord.read(paths.error(rank)),
            clock=self.clock,
            interrupted=self.signals.count,
            may_save=self._may_save,
            wants_save=growth.wants_save,
            is_stuck=watch.is_stuck,
            on_poll=partial(self._look_after, tee),
            on_ask=lambda: self._ask(attempt),
            on_timeout=watch.look_around,
            on_end=lambda ending: self.journal.worker_exit(attempt, ending),
            servants=frozenset(spec.rank for spec in specs if spec.serves),
            replacement=Replacements(
                specs,
                start=partial(self._start_again, start),
                on_replaced=partial(self._say_replaced, attempt),
            ),
            patience=self.patience,
        )
        try:
            self.journal.attempt_start(attempt, handles)
            endings = supervisor.run()
            return Ran(
                endings=endings,
                hang=watch.verdict,
                seen=watch.seen,
                to_grow=growth.wanted,
                seconds=self.clock.now() - began,
            )
        finally:
            tee.close()
            remove_aside(h.pid for h in handles.values() if not isinstance(h, RemoteWorker))

    def _look_after(self, tee: Tee) -> None:
        tee.poll()
        self.data_servers.poll()
        self.look_after()

    def cool(self) -> None:
        """End the processes that stand ready."""
        for home in self.homes:
            home.cool()

    def _start(self, plan: GangPlan, spec: WorkerSpec) -> WorkerHandle:
        return self.homes[plan.home_of(spec.rank)].start(spec, plan.shares[spec.rank].gpus)

    def _say_stall(self, attempt: int, line: str) -> None:
        self.announce(line)
        self.journal.stall(attempt, line)

    def _may_save(self) -> bool:
        return self.signals.first in SIGNALS

    def _ask(self, attempt: int) -> None:
        if self.signals.first is None:
            self.announce("all workers are asked to save and stop, so that more can join them")
            return
        number = signal.Signals(self.signals.first)
        self.journal.preemption(attempt, number=number)
        self.announce(
            f"{number.name}: all workers are asked to save and stop, within "
            f"{self.patience.saving:g} s"
        )

    def _start_again(
        self, start: Callable[[WorkerSpec], WorkerHandle], spec: WorkerSpec
    ) -> WorkerHandle:
        """Start a worker in the place of one that failed; what that one wrote down is its own."""
        self.plan.paths(spec.attempt).error(spec.rank).unlink(missing_ok=True)
        return start(spec)

    def _say_replaced(self, attempt: int, ending: Ending, successor: WorkerHandle) -> None:
        self.announce(f"worker {ending.rank} failed: {ending.what}; another takes its place")
        self.journal.replaced(attempt, ending, pid=successor.pid)


def _write_cluster(path: Path, specs: Sequence[WorkerSpec]) -> None:
    path.write_text(json.dumps([asdict(spec) for spec in specs], indent=2) + "\n")
