"""The page of `phalanx watch`: a live run as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phalanx.launcher.worker_status import WorkerState
from phalanx.monitoring.events import Event, Numbers
from phalanx.report import formatting
from phalanx.report.event_formatting import happened
from phalanx.report.live import LiveRun, LiveWorker, validation_of
from phalanx.report.worker_state import SAVED_WORDS, run_state, state_of

_STYLES = {
    "starting": "cyan",
    "running": "green",
    "slow": "bold yellow",
    "unresponsive": "bold magenta",
    "failed": "bold white on red",
    "killed": "bold white on red",
    "stopped": "dim",
    "ended": "dim green",
}
_COLUMNS = ("rank", "state", "doing", "step", "epoch", "loss", "samples/s", "a step", "gradient",
            "memory", "seen")  # fmt: skip
_TO_THE_LEFT = ("state", "doing")
_WIDE = 96  # columns of a terminal; what each worker does is left out on a narrower one.
_OTHER_ROWS = 10
_NOTABLE = 3


def live_page(
    run: LiveRun,
    *,
    name: str,
    now: float,
    damages: Sequence[str] = (),
    width: int = _WIDE,
    height: int | None = None,
) -> RenderableType:
    """Everything about a run at the time `now`.

    Args:
        run: the events so far.
        name: the run's.
        now: seconds since the epoch.
        damages: what could not be read, a sentence each.
        width: columns of the terminal.
        height: lines of the terminal; workers without trouble that do not fit are counted.
    """
    states = {rank: state_of(worker, run, now) for rank, worker in run.workers.items()}
    shown = chosen(states, None if height is None else height - _OTHER_ROWS)
    parts: list[RenderableType] = [_title(run, name, now), *_progress(run)]
    parts.append(_table([run.workers[rank] for rank in shown], states, now, width))
    left = len(states) - len(shown)
    if left:
        parts.append(Text(f"and {left} more worker{'s' * (left > 1)}", style="dim"))
    parts += [_trouble(rank, states[rank]) for rank in shown if states[rank].reason]
    parts += [Text(_happened(each, run), style="dim") for each in run.notable[-_NOTABLE:]]
    parts += [Text(each, style="yellow") for each in damages]
    if run.end is not None and run.end.report:
        parts.append(Text("\n" + run.end.report, style="red"))
    return Group(*parts)


def chosen(states: dict[int, WorkerState], most: int | None) -> list[int]:
    """The ranks to show, in their order: if not all fit, those in trouble come before others."""
    ranks = sorted(states)
    if most is None or len(ranks) <= max(most, 1):
        return ranks
    urgent = sorted(ranks, key=lambda rank: not states[rank].is_problem)
    return sorted(urgent[: max(most, 1)])


def _title(run: LiveRun, name: str, now: float) -> Text:
    state = run_state(run, now)
    style = {"running": "bold green", "ended well": "bold green", SAVED_WORDS: "bold yellow"}.get(
        state, "bold red"
    )
    text = Text("run ") + Text(name, style="bold") + Text(": ") + Text(state, style=style)
    if run.began is not None:
        until = run.end.t if run.end is not None else now if state == "running" else run.last_seen
        text.append(f", {_whole((until or now) - run.began)}")
    if run.attempt:
        text.append(f", attempt {run.attempt}", style="yellow")
    return text


def _progress(run: LiveRun) -> list[Text]:
    lines = [Text(formatting.format_fit(run.fit), style="dim")] if run.fit else []
    if run.logs is not None:
        lines.append(Text("latest      ") + _numbers(run.logs.logs))
        rate = run.logs.learning_rate
        lines[-1].append(
            f"  learning rate {formatting.format_number(rate)}" if rate is not None else ""
        )
    if run.total_norm is not None and lines:
        lines[-1].append(f"  gradient norm {formatting.format_number(run.total_norm)}")
    validation = validation_of(run.epoch)
    if run.epoch is not None and validation:
        lines.append(Text(f"epoch {run.epoch.epoch:<5} ") + _numbers(validation))
    goodput = run.goodput()
    if goodput is not None and goodput.seconds > 0:
        line = formatting.goodput_line(goodput.goodput, goodput.losses(), most=2)
        lines.append(Text(line.replace("goodput ", "goodput     ", 1)))
    return lines


def _numbers(logs: Numbers) -> Text:
    text = Text()
    for name, value in logs.items():
        text.append(f"{'  ' if text else ''}{name} ")
        text.append(
            formatting.format_number(value), style="bold" if math.isfinite(value) else "bold red"
        )
    return text


def _table(
    workers: Sequence[LiveWorker], states: dict[int, WorkerState], now: float, width: int
) -> Table:
    shown = [column for column in _COLUMNS if column != "doing" or width >= _WIDE]
    table = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, 2 if width >= _WIDE else 1, 0, 0)
    )
    for column in shown:
        side = "left" if column in _TO_THE_LEFT else "right"
        table.add_column(column, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for worker in workers:
        state = states[worker.rank]
        cells = _cells(worker, state, now)
        style = _STYLES[state.name] if state.is_problem else None
        table.add_row(*(cells[column] for column in shown), style=style)
    return table


def _cells(worker: LiveWorker, state: WorkerState, now: float) -> dict[str, Text]:
    is_running = state.name in ("running", "slow")
    return {
        "rank": Text(str(worker.rank)),
        "state": Text(state.name, style=_STYLES[state.name]),
        "doing": Text((worker.phase or formatting.MISSING) if is_running else ""),
        "step": Text(formatting.count(worker.step)),
        "epoch": Text(formatting.count(worker.epoch)),
        "loss": _value(worker.loss),
        "samples/s": Text(formatting.format_number(worker.samples_per_second)),
        "a step": Text(formatting.format_duration(worker.step_seconds)),
        "gradient": _value(worker.gradient_norm),
        "memory": Text(formatting.format_bytes(worker.memory_bytes)),
        "seen": Text(f"{_whole(now - worker.last_seen)} ago"),
    }


def _whole(seconds: float) -> str:
    """A time to the second: finer ones flicker."""
    return formatting.format_duration(float(round(max(0.0, seconds)))).replace("0 ms", "0 s")


def _value(value: float | None) -> Text:
    bad = value is not None and not math.isfinite(value)
    return Text(formatting.format_number(value), style="bold red" if bad else "")


def _trouble(rank: int, state: WorkerState) -> Text:
    style = _STYLES[state.name] if state.is_problem else "dim"
    return Text(f"worker {rank} {state.name}: {state.reason}", style=style)


def _happened(event: Event, run: LiveRun) -> str:
    name, what = happened(event)
    began = event.t if run.began is None else run.began
    return f"after {formatting.format_duration(event.t - began)}: {name}: {what}"
