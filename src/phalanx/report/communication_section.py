"""The part of the page about communication: what a step sends, and which option would help."""

from __future__ import annotations

from phalanx.monitoring.communication_advice import Advice
from phalanx.report import formatting
from phalanx.report.communication import WORTH_SAYING, Communication
from phalanx.report.html import Section, Table


def communication_section(found: Communication | None) -> Section:
    """What a step sends, how long it waits for that, and what would help."""
    if found is None:
        return Section(title="Communication")
    return Section(title="Communication", tables=[_costs(found), _advice(found.advice)])


def format_plan(found: Communication) -> str:
    """What one worker adds up in a step: 40 MB of float32, 4 buckets."""
    plan = found.plan
    if plan is None:
        return formatting.MISSING
    pieces = f"{len(plan.buckets)} bucket{'s' * (len(plan.buckets) != 1)}"
    parts = [f"{formatting.format_bytes(plan.bytes)} of {plan.dtype}", pieces]
    parts += [f"{len(plan.sparse)} sparse, whose rows differ by step"] if plan.sparse else []
    return ", ".join(parts)


def communication_line(found: Communication) -> str:
    """The share of communication, and the best option: one line for a terminal; "" for neither."""
    if found.costs is None or found.share is None:
        return ""
    size = "" if found.plan is None else f", {formatting.format_bytes(found.plan.bytes)} a step"
    line = f"communication {formatting.percent(found.share)} of a step{size}"
    best = [
        f"{each.options} would save {formatting.percent(each.gain)}"
        for each in found.advice
        if each.is_exact and not found.shares_cores
    ]
    return "; ".join([line, *best[:1]])


def _costs(found: Communication) -> Table:
    costs = found.costs
    rows = [("gradients that one worker adds up in a step", format_plan(found))]
    if costs is None:
        rows.append(
            (
                "share of a step",
                "not measured: the run was too short, or its gradients are sampled in every step",
            )
        )
        return Table(title="What a step sends", columns=("", ""), rows=rows)
    rows += [
        ("share of a step, with the wait for slower workers", formatting.percent(found.share)),
        ("a mean step of the slowest worker", formatting.format_duration(costs.step)),
        ("of that, waiting for the transfer", formatting.format_duration(costs.communication)),
        ("wait for slower workers", formatting.format_duration(found.waiting)),
    ]
    if costs.bytes and costs.transfer > 0:
        rate = formatting.format_bytes(costs.bytes / costs.transfer)
        rows.append(("speed of the transfer", f"{rate}/s of one worker's gradients"))
    if found.advice and found.shares_cores:
        rows.append(
            (
                "options that would help",
                "All workers compute on the cores of one host, and the transfer takes these cores "
                "too: there, less overlaps than is predicted. Measure before you decide.",
            )
        )
    if not found.advice:
        why = (
            f"communication is below {WORTH_SAYING:.0%} of a step"
            if costs.share < WORTH_SAYING
            else "by the model below, none saves 2%"
        )
        rows.append(("options that would help", f"none: {why}"))
    return Table(title="What a step sends", columns=("", ""), rows=rows)


def _advice(advice: tuple[Advice, ...]) -> Table:
    rows = [
        (
            each.options,
            formatting.format_duration(each.step),
            formatting.percent(each.gain),
            each.what,
        )
        for each in advice
    ]
    return Table(
        title="What would help, as predicted from the measured step",
        columns=("option of phalanx run", "a step", "saves", ""),
        rows=rows,
        numeric=(1, 2),
    )
