"""The status of a worker by its flight recorder, and who waits for whom.

A heartbeat has a phase only. The recorder also shows whether the batch of the current step has
arrived, which collective of the host the worker is in, and what it did when it failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.worker_status import (
    EXIT_BARRIER,
    RUNNING,
    WorkerProgress,
    WorkerStatus,
    worker_status_of,
)
from phalanx.monitoring.flight_format import Flight, FlightEvent
from phalanx.monitoring.flight_reader import read_flight

_NANO = 1e9


def merge_flight_status(
    progress: WorkerProgress, file: Path, *, now: float, last_heartbeat: float
) -> WorkerProgress:
    """`progress`, known from heartbeats, and what the flight recorder in `file` adds to it.

    A recorder that says something else than the heartbeat was left behind by another process. Its
    times are of the worker's clock, so durations alone are taken from it.

    Args:
        progress: its `since` is of the reader's clock.
        file: the flight recorder's.
        now: the time, by the reader's clock.
        last_heartbeat: when the reader saw the last new heartbeat.
    """
    flight = read_flight(file)
    location = None if flight is None else progress_of(flight)
    if location is None or location.failed or location.phase not in (progress.phase, "input"):
        return progress
    if flight is None or progress.phase not in ("compute", "input"):
        return replace(location, since=progress.since)
    lasted = flight.alive / _NANO - location.since + (now - last_heartbeat)
    return replace(location, since=min(now, max(now - lasted, progress.since)))


def progress_of(flight: Flight) -> WorkerProgress | None:
    """The progress of a worker by its flight recorder; None if that is empty."""
    events = flight.events
    if not events:
        return None
    doing = [event for event in events if event.kind != "phase"]
    phase = next((e for e in reversed(events) if e.kind == "phase"), None)
    name = phase.name if phase is not None else "start"
    known = max((e for e in events if e.epoch is not None), key=_number, default=None)
    epoch = None if known is None else known.epoch
    batch = next((e.batch for e in reversed(_of_this_call(events)) if e.came is not None), "")
    at = next((e for e in reversed(doing) if e.is_open), None) or _failed(doing)
    if at is None:
        last = events[-1]
        step = _trained_after(last)
        since = phase.begin if phase is not None and phase.is_open else last.end or last.begin
        return WorkerProgress(
            phase=name,
            since=since / _NANO,
            step=step,
            epoch=epoch,
            waits=None if name == "compute" else False,  # Keras may add up something on its own.
            batch=batch,
        )
    if not at.is_open:  # The phase that it failed in, and not what came after.
        before = [e for e in events if e.kind == "phase" and e.begin <= at.begin]
        name = before[-1].name if before else name
    within = _within(at, name, was_sampled=flight.alive >= at.begin)
    return replace(within, epoch=epoch, batch=batch, failed=not at.is_open)


def failure_context(paths: AttemptPaths, ranks: Sequence[int], cause: int) -> list[str]:
    """The progress of the workers when one failed, in a line or two; none if it is unknown.

    Args:
        paths: where their flight recorders are.
        ranks: the workers.
        cause: the one that failed first.
    """
    found = {
        rank: worker_status_of(progress, "", until=(flight.ended or flight.alive) / _NANO)
        for rank in ranks
        if (flight := read_flight(paths.flight(rank))) is not None
        and (progress := progress_of(flight)) is not None
    }
    if cause not in found or not _has_trained(found[cause].progress):
        return []
    line = diagnose_failure(found, cause)
    return [f"{line[0].upper()}{line[1:]}.", *diff_batch_specs(found)]


def _has_trained(progress: WorkerProgress) -> bool:
    # A step that failed before the recorder asked for its batch leaves the phase "idle" behind it.
    trains = progress.phase not in ("start", "idle")
    return trains or progress.failed or progress.waits_in is not None


def _within(event: FlightEvent, phase: str, *, was_sampled: bool) -> WorkerProgress:
    """The progress of a worker in a step or a collective.

    Args:
        event: the step or the collective.
        phase: the phase that continues.
        was_sampled: whether the recorder has looked which batches came since it began.
    """
    started = event.begin / _NANO
    if event.kind == "collective":
        return WorkerProgress(
            phase=phase, since=started, step=event.step, waits=True, waits_in=event.name
        )
    before = _trained_before(event)
    if event.done is None:  # Its batch is not recorded: the phase may be.
        waits = phase != "input"
        return WorkerProgress(phase=phase, since=started, step=before, waits=waits)
    if event.is_open and not was_sampled:
        return WorkerProgress(phase=phase, since=started, step=before)
    if event.done == 0 or event.came is None:
        return WorkerProgress(phase="input", since=started, step=before, waits=False)
    is_train = event.kind == "train"
    ended = event.done - 1 if is_train else 0
    step = None if before is None else before + ended
    return WorkerProgress(
        phase="compute" if is_train else phase,
        since=event.came / _NANO,
        step=step,
        waits=True,
        arrived=step + 1 if is_train and event.steps > 1 and step is not None else None,
    )


def _trained_before(event: FlightEvent) -> int | None:
    if event.step is None:
        return None
    return (event.step - 1 if event.kind == "train" else event.step) or None


def _trained_after(event: FlightEvent) -> int | None:
    if event.kind != "train" or event.step is None:
        return event.step
    return event.step - 1 + (event.done if event.done is not None else event.steps) or None


def _of_this_call(events: Sequence[FlightEvent]) -> list[FlightEvent]:
    """What belongs to the last call, such as `fit`, and has a batch that is known."""
    between = [e.number for e in events if e.kind == "phase" and e.name == "idle" and e.end]
    # What follows the last call is not what came before it.
    last = max(
        (e.number for e in events if e.number not in between and e.name != "idle"), default=0
    )
    started = max((number for number in between if number < last), default=0)
    return [e for e in events if e.kind != "phase" and e.number > started and e.signature]


def _failed(doing: Sequence[FlightEvent]) -> FlightEvent | None:
    """The last event that ended in an error, unless another began after its end."""
    failed = [e for e in doing if e.how == "failed"]
    if not failed:
        return None
    end = failed[-1].end
    # Collectives inside a failed step began before the step ended.
    return failed[-1] if end is None or all(e.begin <= end for e in doing) else None


def _number(event: FlightEvent) -> int:
    return event.number


_NO_PROGRESS = "no worker has started anything new"
_FIRST_DIMENSION = re.compile(r"\[[^,\]]+")


def diagnose_wait(found: Mapping[int, WorkerStatus], now: float) -> str:
    """One line: the workers that others wait for, what they do and for how long."""
    late = [rank for rank, each in sorted(found.items()) if each.is_late]
    late = late or _behind_in_input(found)
    if not late or len(late) == len(found):
        longest = max((_seconds(each, now) for each in found.values()), default=0.0)
        out_of_sync = _out_of_sync(found) if not late else None
        return out_of_sync or f"{_NO_PROGRESS} for {longest:.0f} s"
    others = [each for rank, each in found.items() if rank not in late]
    verb = "waits" if len(others) == 1 else "wait"
    who = "the other" if len(others) == 1 else "the others"
    location = ", ".join(_late(rank, found[rank], now) for rank in late)
    return f"{location}; {who} {verb}{_common_collective(others)}"


def diagnose_failure(found: Mapping[int, WorkerStatus], cause: int) -> str:
    """One line about a run in which worker `cause` failed first: which worker others waited for.

    If no worker differs from the others, it is the progress of that worker.
    """
    before = {rank: replace(each, state=RUNNING) for rank, each in found.items()}
    until = max((each.until or 0.0 for each in found.values()), default=0.0)
    location = diagnose_wait(before, until)
    if not location.startswith(_NO_PROGRESS):
        return location
    each = found[cause]
    batch = f", its last batch {each.progress.batch}" if each.progress.batch else ""
    return f"it was {each.activity}{each.progress.after}{batch}"


def lines_about(found: Mapping[int, WorkerStatus], now: float) -> list[str]:
    """A line for each worker."""
    return [f"Worker {rank}: {line_about(each, now)}" for rank, each in sorted(found.items())]


def line_about(each: WorkerStatus, now: float) -> str:
    """The progress of one worker, for how long, and at which line."""
    epoch = each.progress.epoch
    where = "" if epoch is None else f" of epoch {epoch}"
    location = f"; {each.location}" if each.location else ""
    what = f"{each.activity}{each.progress.after}{where}"
    if each.state.is_absent:
        return f"{each.state.description}; it was {what}."
    return f"{what} for {_seconds(each, now):.0f} s{location}."


def diff_batch_specs(found: Mapping[int, WorkerStatus]) -> list[str]:
    """A line if the shapes or dtypes of the workers' last batches differ; else none."""
    forms = {rank: batch_spec(each.progress.batch) for rank, each in sorted(found.items())}
    kinds = list(dict.fromkeys(form for form in forms.values() if form))
    if len(kinds) < 2:
        return []
    by_form = [([r for r, form in forms.items() if form == kind], kind) for kind in kinds]
    location = "; ".join(f"{_workers(ranks)}: {kind}" for ranks, kind in by_form)
    return [f"Their last batches differ: {location}."]


def batch_spec(batch: str) -> str:
    """A batch's names, shapes and dtypes without the number of samples, which may differ."""
    return _FIRST_DIMENSION.sub("[samples", batch)


def _late(rank: int, each: WorkerStatus, now: float) -> str:
    seconds = f"for {_seconds(each, now):.0f} s"
    if each.state.is_absent:
        return f"worker {rank} {each.state.description}, {each.activity}{each.progress.after}"
    if each.progress.waits_in == EXIT_BARRIER:
        return f"worker {rank} has come to its script's end{each.progress.after} {seconds}"
    if _was_training(each) or (each.progress.arrived is not None):
        doing = each.activity if each.is_late else "waiting in next(iterator)"
        return f"worker {rank} never reached {each.progress.next_step}: {doing} {seconds}"
    return f"worker {rank} is {each.activity}{each.progress.after} {seconds}"


def _behind_in_input(found: Mapping[int, WorkerStatus]) -> list[int]:
    """Of calls that train several steps: the workers without a batch that the others have."""
    arrived = {rank: each.progress.arrived for rank, each in sorted(found.items())}
    known = {rank: step for rank, step in arrived.items() if step is not None}
    if len(known) < len(found):
        return []
    return [rank for rank, step in known.items() if step < max(known.values())]


def _out_of_sync(found: Mapping[int, WorkerStatus]) -> str | None:
    """All wait, but in different collectives or steps: they are out of sync."""
    waits: dict[tuple[str, int | None], list[int]] = {}
    for rank, each in sorted(found.items()):
        if each.progress.waits is None:
            return None
        key = (_collective(each), each.progress.step)
        waits.setdefault(key, []).append(rank)
    if len(waits) < 2:
        return None
    location = "; ".join(
        f"{_workers(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in the {collective}"
        f"{found[ranks[0]].progress.after}"
        for (collective, _), ranks in waits.items()
    )
    steps = {rank: each.progress.step or 0 for rank, each in found.items()}
    behind = [rank for rank, step in sorted(steps.items()) if step < max(steps.values())]
    if behind:
        return (
            f"{location}: {_workers(behind)} left out a step, or took one that the others left out"
        )
    return f"{location}: they are out of sync"


def _collective(each: WorkerStatus) -> str:
    if each.progress.waits_in is not None:
        return each.progress.waits_in
    return "all-reduce" if each.progress.phase == "compute" else each.progress.phase


def _common_collective(others: Sequence[WorkerStatus]) -> str:
    found = {_collective(each) for each in others}
    is_collective = all(
        each.progress.waits_in is not None or each.progress.phase == "compute" for each in others
    )
    return f" in the {found.pop()}" if len(found) == 1 and is_collective else ""


def _workers(ranks: Sequence[int]) -> str:
    return f"worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _seconds(each: WorkerStatus, now: float) -> float:
    return max(0.0, (now if each.until is None else each.until) - each.progress.since)


def _was_training(each: WorkerStatus) -> bool:
    return each.progress.phase not in ("start", "idle", "validation")
