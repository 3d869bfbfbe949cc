"""Goodput: the share of a run's time that trained, and what took the rest, from its events alone.

The time of a run, over all its attempts, is divided into the rows of `ROWS`, which add up to it.
Google's ml-goodput-measurement library has the same division into productive time and kinds of
"badput" (https://github.com/AI-Hypercomputer/ml-goodput-measurement); the Llama 3 paper reports it
as effective training time (https://arxiv.org/abs/2407.21783, section 3.3.4).

The chief's events stand for all workers, which train in step. Each heartbeat says how many seconds
the process has spent in each phase so far, so the division is exact wherever there is one: every
two seconds, after the first step, and before and after a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.monitoring.events import (
    AttemptStart,
    Event,
    FitEnd,
    FitStart,
    HeartbeatEvent,
    RunEnd,
    RunStart,
    ThroughputEvent,
    WorkerExitEvent,
    WorkerStart,
)
from phalanx.monitoring.phase_tracker import SECONDS

ROWS: Mapping[str, str] = {
    "training": "training",
    "input": "waiting for input",
    "waiting": "waiting for other workers",
    "callbacks": "callbacks",
    "validation": "validation",
    "saving": "saving",
    "starting": "starting",
    "first_step": "first steps, with tracing",
    "repeated": "steps trained again",
    "failures": "failures",
    "outside": "outside of fit",
}
"""The rows, and what they are called; `docs/watch-and-report.md` says what each holds."""

_LAUNCHER = (RunStart, AttemptStart, WorkerExitEvent, RunEnd)
_CHIEF = (WorkerStart, FitStart, FitEnd, HeartbeatEvent)
_IN_FIT = {"compute": "steps", "input": "steps", "callbacks": "callbacks",
           "checkpoint": "saving", "validation": "validation"}  # fmt: skip
_BETWEEN_FITS = {"checkpoint": "saving", "validation": "validation"}
_UNDONE_BY_A_RESTART = ("steps", "callbacks", "validation")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """What the time of a run was spent on.

    Attributes:
        seconds: of the run, over all attempts.
        not_running: seconds between the sessions of a run that was resumed; not in `seconds`.
        rows: seconds by the keys of `ROWS`; they add up to `seconds`.
        steps_repeated: how many steps a restart had trained again.
        not_measured: rows whose time is in "training", because no step was timed in its parts.
    """

    seconds: float
    not_running: float
    rows: Mapping[str, float]
    steps_repeated: int
    not_measured: tuple[str, ...]

    @property
    def goodput(self) -> float:
        """The fraction of the time that trained."""
        return self.fraction("training")

    @property
    def step_seconds(self) -> float:
        """Seconds of the steps that counted: training, and the waits inside of steps."""
        return self.rows["training"] + self.rows["input"] + self.rows["waiting"]

    def fraction(self, row: str) -> float:
        """One row's fraction of the time."""
        return self.rows[row] / self.seconds if self.seconds > 0 else 0.0

    def losses(self) -> list[tuple[str, float]]:
        """What took the rest, by name, the most first; rows without time are left out."""
        found = [
            (ROWS[row], self.fraction(row))
            for row in ROWS
            if row != "training" and self.rows[row] > 0
        ]
        return sorted(found, key=lambda pair: -pair[1])


def is_about_goodput(event: Event, chief: int | None) -> bool:
    """Whether `measure_goodput` reads this event, if the chief has that rank."""
    if isinstance(event, _CHIEF):
        return event.writer_rank == chief
    return isinstance(event, (*_LAUNCHER, ThroughputEvent))


def measure_goodput(events: Iterable[Event], *, until: float | None = None) -> Goodput | None:
    """Divide a run's time; None if it has called no `fit`, as in a loop written by hand.

    Args:
        events: of the run, each file's in the order of writing.
        until: the end of a run that still runs, seconds since the epoch; None for its last event.
    """
    events = list(events)
    processes = _processes(events)
    if not any(process.fits for process in processes.values()):
        return None
    sessions = _sessions(events, processes, until)
    resumed = _resumed([a.number for session in sessions for a in session.attempts], processes)
    rows = dict.fromkeys((*ROWS, "steps"), 0.0)
    repeated = 0
    for session in sessions:
        begin = session.begin
        for attempt in session.attempts:
            process, position = processes.get(attempt.number), resumed[attempt.number]
            repeated += 0 if process is None else process.steps_after(position)
            _divide(attempt, process, position, begin, rows)
            begin = max(begin, attempt.end)
        rows["outside" if session.attempts else "starting"] += max(0.0, session.end - begin)
    missing = _split_steps(rows, [e for e in events if isinstance(e, ThroughputEvent)])
    return Goodput(
        seconds=sum(rows.values()),
        not_running=sum(max(0.0, after.begin - before.end) for before, after in pairwise(sessions)),
        rows=rows,
        steps_repeated=repeated,
        not_measured=missing,
    )


@dataclass(frozen=True, kw_only=True)
class _Moment:
    """What the chief had done at a time, as a heartbeat says it; `fit` is the one under way."""

    t: float
    fit: int | None
    event: HeartbeatEvent

    @property
    def step(self) -> int:
        return self.event.step or 0


@dataclass(kw_only=True)
class _Process:
    """The chief of one attempt.

    Attributes:
        moments: in order.
        fits: the step at which each `fit` began, by number.
    """

    moments: list[_Moment] = field(default_factory=list)
    fits: dict[int, int] = field(default_factory=dict)

    @cached_property
    def trained_from(self) -> tuple[int, int] | None:
        """The `fit` and the step after which it trained; None if it trained no step."""
        found = [
            (moment.fit, self.fits[moment.fit])
            for moment in self.moments
            if moment.fit is not None and moment.step > self.fits[moment.fit]
        ]
        return min(found, default=None)

    @cached_property
    def trained_at(self) -> float:
        """When the first step was done; infinity if none was."""
        return next((m.t for m in self.moments if self.has_trained(m)), math.inf)

    def has_trained(self, moment: _Moment) -> bool:
        """Whether the first step of its `fit` was done at that moment."""
        return moment.fit is not None and moment.step > self.fits[moment.fit]

    def steps_after(self, resumed: tuple[int, int] | None) -> int:
        """How many steps it trained after the one where a later attempt resumed."""
        reached: dict[int, int] = {}
        for moment in self.moments:
            if moment.fit is not None:
                reached[moment.fit] = max(reached.get(moment.fit, 0), moment.step)
        if resumed is None:
            return 0
        return sum(
            max(
                0, step - (max(resumed[1], self.fits[fit]) if fit == resumed[0] else self.fits[fit])
            )
            for fit, step in reached.items()
            if fit >= resumed[0]
        )


def _processes(events: Sequence[Event]) -> dict[int, _Process]:
    """The chief of each attempt that came as far as its script."""
    ranks = [e.writer_rank for e in events if isinstance(e, _CHIEF) and e.writer_rank is not None]
    chief = min(ranks, default=0)
    found: dict[int, _Process] = {}
    process = _Process()
    fit: int | None = None
    for event in events:
        if not isinstance(event, _CHIEF) or event.writer_rank != chief:
            continue
        if isinstance(event, HeartbeatEvent):
            if process.moments and _is_of_another(process.moments[-1].event, event):
                process, fit = _Process(), None
            process.moments.append(_moment(process, event, fit))
            if fit is not None:
                process.fits.setdefault(fit, event.step or 0)
        elif isinstance(event, WorkerStart):
            if process in found.values():
                process = _Process()
            found[event.attempt], fit = process, None
        elif isinstance(event, FitStart):
            fit = event.fit or 0
            if event.step is not None:  # Else, in older records, the next heartbeat says it.
                process.fits[fit] = event.step
        else:
            fit = None
    return found


def _is_of_another(before: HeartbeatEvent, after: HeartbeatEvent) -> bool:
    """Whether a process ended between two heartbeats: the first ones come before `worker_start`."""
    if before.phase_number is not None and after.phase_number is not None:
        return after.phase_number < before.phase_number
    return before.attempt != after.attempt


def _moment(process: _Process, event: HeartbeatEvent, fit: int | None) -> _Moment:
    """Times count by the process's own clock: a wall clock that is set changes no duration."""
    t = event.t
    if process.moments:
        first = process.moments[0]
        if event.phase_totals:
            uptime = [sum(e.phase_totals.values()) for e in (first.event, event)]
            t = first.t + uptime[1] - uptime[0]
        t = max(t, process.moments[-1].t)
    return _Moment(t=t, fit=fit, event=event)


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """One start of the worker group; `failed_at` is when the first process failed, if one did."""

    number: int
    end: float
    is_over: bool
    failed_at: float | None


@dataclass(frozen=True, kw_only=True)
class _LauncherSession:
    """What one `phalanx run` did; a run that is resumed has several."""

    begin: float
    end: float
    attempts: Sequence[_Attempt]


def _sessions(
    events: Sequence[Event], processes: Mapping[int, _Process], until: float | None
) -> list[_LauncherSession]:
    groups: list[list[Event]] = []
    for event in events:
        if isinstance(event, _LAUNCHER) and event.writer_rank is None:
            if isinstance(event, RunStart) or not groups:
                groups.append([])
            groups[-1].append(event)
    if not groups:
        last = max(event.t for event in events)
        begin = min(event.t for event in events)
        whole = [_Attempt(number=n, end=last, is_over=False, failed_at=None) for n in processes]
        return [_LauncherSession(begin=begin, end=until or last, attempts=whole)]
    numbers = [
        [event.attempt for event in group if isinstance(event, AttemptStart)] for group in groups
    ]
    return [
        _session(group, own, processes, until if group is groups[-1] else None, group is groups[-1])
        for group, own in zip(groups, numbers, strict=True)
    ]


def _session(
    group: Sequence[Event],
    numbers: Sequence[int],
    processes: Mapping[int, _Process],
    until: float | None,
    is_last: bool,
) -> _LauncherSession:
    ends = [event.t for event in group if isinstance(event, RunEnd)]
    seen = [event.t for event in group]
    seen += [p.moments[-1].t for n in numbers if (p := processes.get(n)) and p.moments]
    end = ends[-1] if ends else max(seen) if until is None else until
    begin = group[0].t
    attempts = []
    for number in numbers:
        exits = [e for e in group if isinstance(e, WorkerExitEvent) and e.attempt == number]
        is_over = bool(exits or ends) or number != numbers[-1] or not is_last
        finish = (
            max((e.t for e in exits), default=end)
            if number == numbers[-1]
            else _end_of(number, exits, group)
        )
        begin = max(begin, min(finish, end))
        attempts.append(
            _Attempt(number=number, end=begin, is_over=is_over, failed_at=_failed_at(exits, begin))
            if is_over
            else _Attempt(number=number, end=max(begin, end), is_over=False, failed_at=None)
        )
    return _LauncherSession(begin=group[0].t, end=max(end, begin), attempts=attempts)


def _end_of(number: int, exits: Sequence[WorkerExitEvent], group: Sequence[Event]) -> float:
    """The end of an attempt that another one followed."""
    following = [e.t for e in group if isinstance(e, AttemptStart) and e.attempt > number]
    return max((e.t for e in exits), default=min(following))


def _failed_at(exits: Sequence[WorkerExitEvent], end: float) -> float | None:
    """When an attempt failed; None if it ended well, or saved and stopped."""
    if not exits:
        return end  # Its launcher was killed, or lost the processes.
    if all(each.code in (0, RESUME_EXIT_CODE) and each.signal is None for each in exits):
        return None
    return min((each.t for each in exits if each.is_failure), default=end)


def _resumed(
    attempts: Sequence[int], processes: Mapping[int, _Process]
) -> dict[int, tuple[int, int] | None]:
    """By attempt: the earliest `fit` and step after which a later attempt trained, if one did."""
    found: dict[int, tuple[int, int] | None] = {}
    earliest: tuple[int, int] | None = None
    for attempt in reversed(attempts):
        found[attempt] = earliest
        process = processes.get(attempt)
        if process is not None and process.trained_from is not None:
            own = process.trained_from
            earliest = own if earliest is None else min(earliest, own)
    return found


@dataclass(kw_only=True)
class _Cursor:
    """Divides the time of an attempt from its begin to its end, each second once."""

    now: float
    end: float
    rows: dict[str, float]

    def to(self, t: float, shares: Mapping[str, float]) -> None:
        """Divide the time up to `t`; the shares add up to 1."""
        seconds = max(0.0, min(t, self.end) - self.now)
        for row, share in shares.items():
            self.rows[row] += seconds * share
        self.now += seconds


def _divide(
    attempt: _Attempt,
    process: _Process | None,
    resumed: tuple[int, int] | None,
    begin: float,
    rows: dict[str, float],
) -> None:
    """Add the time of an attempt to `rows`."""
    cursor = _Cursor(now=begin, end=attempt.end, rows=rows)
    moments = process.moments if process is not None else []
    if process is None or math.isinf(process.trained_at):
        cursor.to(attempt.end, {"starting": 1.0})
        return
    last = moments[-1]
    stops = _stop_of_work(attempt, last)
    cursor.to(moments[0].t, {"starting": 1.0})
    for before, after in pairwise(moments):
        shares = _shares(process, before, after)
        kept = _not_repeated(before, after, resumed)
        span = min(after.t, stops) - before.t
        cursor.to(min(before.t + kept * (after.t - before.t), stops), shares)
        if span > 0 and kept < 1:
            cursor.to(min(after.t, stops), _as_repeated(shares))
    if attempt.failed_at is None:
        shares = {"outside": 1.0} if attempt.is_over else _row_of(process, last, last.event.phase)
        cursor.to(attempt.end, shares)
        return
    if last.event.phase_seconds is not None and last.event.phase_seconds < SECONDS:
        at_work = attempt.failed_at - last.t < 1.5 * SECONDS  # A heartbeat was not yet due.
        going_on = _as_repeated(_row_of(process, last, last.event.phase))
        cursor.to(attempt.failed_at if at_work else last.t, going_on)
    cursor.to(attempt.end, {"failures": 1.0})


def _stop_of_work(attempt: _Attempt, last: _Moment) -> float:
    """From when on an attempt that failed did nothing more: its phase lasted, or it was silent."""
    if attempt.failed_at is None:
        return math.inf
    phase_seconds = last.event.phase_seconds or 0.0
    return last.t if phase_seconds < SECONDS else last.t - phase_seconds


def _shares(process: _Process, before: _Moment, after: _Moment) -> dict[str, float]:
    """The rows of the time between two moments, as fractions of it."""
    if before.fit is None and before.t < process.trained_at:
        return {"starting": 1.0}
    if after.fit is not None and not process.has_trained(before) and before.fit == after.fit:
        return {"first_step": 1.0}
    shares: dict[str, float] = {}
    for phase, share in _phases(before, after).items():
        for row, part in _row_of(process, before, phase).items():
            shares[row] = shares.get(row, 0.0) + share * part
    return shares


def _row_of(process: _Process, moment: _Moment, phase: str | None) -> dict[str, float]:
    """The row of what a process does in a phase, from that moment on."""
    if moment.fit is None:
        return {_BETWEEN_FITS.get(phase or "", "outside"): 1.0}
    if not process.has_trained(moment):
        return {"first_step": 1.0}
    return {_IN_FIT.get(phase or "", "outside"): 1.0}


def _phases(before: _Moment, after: _Moment) -> dict[str, float]:
    """The fraction of each phase in the time between two moments."""
    spent = {
        phase: seconds - before.event.phase_totals.get(phase, 0.0)
        for phase, seconds in after.event.phase_totals.items()
    }
    total = sum(max(0.0, seconds) for seconds in spent.values())
    if total > 0:
        return {phase: max(0.0, seconds) / total for phase, seconds in spent.items()}
    # Records of before `phase_totals`: the phase at the end is known, and since when.
    span = after.t - before.t
    of_last = min(1.0, (after.event.phase_seconds or 0.0) / span) if span > 0 else 1.0
    shares = {before.event.phase or "": 1.0 - of_last}
    shares[after.event.phase or ""] = shares.get(after.event.phase or "", 0.0) + of_last
    return shares


def _not_repeated(before: _Moment, after: _Moment, resumed: tuple[int, int] | None) -> float:
    """The fraction of the time between two moments whose steps no later attempt trained again."""
    if resumed is None or before.fit is None or before.fit < resumed[0]:
        return 1.0
    if before.fit > resumed[0] or before.step >= resumed[1]:
        return 0.0
    if after.fit != before.fit or after.step <= resumed[1]:
        return 1.0
    return (resumed[1] - before.step) / (after.step - before.step)


def _as_repeated(shares: Mapping[str, float]) -> dict[str, float]:
    """The same time where a later attempt does it again."""
    found: dict[str, float] = {}
    for row, share in shares.items():
        key = "repeated" if row in _UNDONE_BY_A_RESTART else row
        found[key] = found.get(key, 0.0) + share
    return found


def _split_steps(rows: dict[str, float], windows: Sequence[ThroughputEvent]) -> tuple[str, ...]:
    """Divide the time of steps by what timed steps say; returns what they do not say.

    Communication is the transfer and the wait for slower workers. The worker that needs least in a
    window waits for no other; what others need beyond that is their wait.
    """
    least: dict[tuple[int, int], float] = {}
    for each in windows:
        if (share := each.time_fractions.get("communication")) is not None:
            key = (each.attempt, each.step)
            least[key] = min(least.get(key, share), share)
    total = {"input": 0.0, "waiting": 0.0}
    parts = {"input": 0.0, "waiting": 0.0}
    for each in windows:
        found = each.time_fractions
        in_steps = sum(found.get(name, 0.0) for name in ("compute", "input", "communication"))
        if not each.seconds or not math.isfinite(each.seconds) or in_steps <= 0:
            continue
        own = {"input": found.get("input"), "waiting": None}
        if "communication" in found:
            own["waiting"] = found["communication"] - least[each.attempt, each.step]
        for row, share in own.items():
            if share is not None:
                total[row] += each.seconds * in_steps
                parts[row] += each.seconds * max(0.0, share)
    steps = rows.pop("steps")
    for row, seconds in total.items():
        rows[row] = steps * min(1.0, parts[row] / seconds) if seconds > 0 else 0.0
    over = max(1.0, (rows["input"] + rows["waiting"]) / steps) if steps > 0 else 1.0
    rows["input"], rows["waiting"] = rows["input"] / over, rows["waiting"] / over
    rows["training"] = max(0.0, steps - rows["input"] - rows["waiting"])
    return tuple(row for row, seconds in total.items() if seconds == 0)
