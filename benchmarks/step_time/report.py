"""The figures as a table: on a terminal, in Markdown, as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from tables import print_table

from step_time.measure import Series, ratio
from step_time.workload import GLOBAL_BATCH, MODELS

NAMES = {
    "ours": "Phalanx `fit`",
    "keras3": "Keras 3 `fit`",
    "tf_keras_mwms": "tf_keras `fit`",
    "torch_ddp": "PyTorch DDP, gloo",
    "hand_loop": "bare TensorFlow loop, packed all-reduce",
}
COLUMNS = (
    "",
    "ms per step",
    "vs. Keras 3",
    "vs. tf_keras",
    "spread",
    "CPU ms",
    "vs. Keras 3",
    "vs. tf_keras",
)


def sections(series: Sequence[Series]) -> dict[str, list[tuple[str, ...]]]:
    """Rows by title, one section for each model and number of workers."""
    titled: dict[str, list[Series]] = {}
    for one in series:
        workers = f"{one.workers} worker{'' if one.workers == 1 else 's'}"
        titled.setdefault(f"{MODELS[one.model]}, {workers}", []).append(one)
    return {title: [_row(one, group) for one in group] for title, group in titled.items()}


def _row(one: Series, group: Sequence[Series]) -> tuple[str, ...]:
    if one.error or not one.laps:
        return (NAMES[one.contender], f"crashes: {one.error}", *[""] * 6)
    others = {other.contender: other for other in group if other.laps and not other.error}
    wall, cpu = (
        [
            f"{ratio(one, others[name], of=of):.2f}" if name in others else ""
            for name in ("keras3", "tf_keras_mwms")
        ]
        for of in ("wall", "cpu")
    )
    clock = (f"{one.milliseconds:.2f}", *wall, f"± {one.spread:.0%}")
    return (NAMES[one.contender], *clock, f"{one.cpu_milliseconds:.2f}", *cpu)


def show(series: Sequence[Series]) -> None:
    """On the terminal."""
    for title, rows in sections(series).items():
        table = Table(*COLUMNS, title=title, title_justify="left")
        for row in rows:
            table.add_row(*(cell.replace("`", "") for cell in row))
        print_table(table)


def markdown(series: Sequence[Series], about: str) -> str:
    """For the documentation."""
    lines = [about, ""]
    for title, rows in sections(series).items():
        lines += [f"### {title}", "", *_markdown_row(COLUMNS), "|---" + "|---:" * 7 + "|"]
        lines += [line for row in rows for line in _markdown_row(row)]
        lines.append("")
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"]


def as_data(series: Sequence[Series], **about: Any) -> dict[str, Any]:
    """For programs."""
    return {**about, "series": [asdict(one) for one in series]}


def describe(
    versions: Mapping[str, str], *, rounds: int, steps: Mapping[str, int], command: str
) -> str:
    """What was measured where, with nothing that names the machine or the day."""
    cores = len(os.sched_getaffinity(0))
    counts = " or ".join(f"{count} ({model.upper()})" for model, count in steps.items())
    software = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"`{command}`: the median of {rounds} rounds of {counts} steps; global batch "
        f"{GLOBAL_BATCH}, Adam, one core for each worker. Ratios are medians of the ratios of each "
        "round; the spread is half the interquartile range. CPU time is the sum over all workers; "
        "it hardly depends on the other load of the machine.\n\n"
        f"Measured on {cores} cores ({processor()}); {software}."
    )


def measured_on(software: Mapping[str, str]) -> str:
    """A sentence that names the processor and versions."""
    named = ", ".join(f"{name} {number}" for name, number in software.items())
    return f"Measured on {processor()}; {named}."


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
