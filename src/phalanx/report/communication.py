"""What the steps of a run send, how long they wait for it, and which option would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.monitoring.communication_advice import Advice, StepCosts, advise
from phalanx.monitoring.events import FitStart, ReductionPlan, ThroughputEvent, WorkerStart
from phalanx.report.run_data import RunData

WORTH_SAYING = 0.05
"""Communication below this fraction of a step gets no advice: other numbers vary more."""

_FLOAT32 = 4  # bytes


@dataclass(frozen=True, kw_only=True)
class Communication:
    """The communication of a run's steps; None where it was not recorded.

    Attributes:
        plan: what a step adds up.
        costs: of a mean step of the slowest worker, which waits for no other.
        waiting: seconds a step that a worker waits for slower ones; mean over the workers.
        share: the fraction of a step in the transfer and in that wait; mean over the workers.
        advice: the options that would help.
        shares_cores: whether all workers compute on the cores of one host, which the transfer
            takes too: less overlaps there than is predicted.
    """

    plan: ReductionPlan | None
    costs: StepCosts | None
    waiting: float | None
    share: float | None
    advice: tuple[Advice, ...]
    shares_cores: bool


def communication(data: RunData) -> Communication | None:
    """The communication of a run; None if one worker trains alone, or nothing is known."""
    plans = data.of(ReductionPlan)
    plan = plans[-1] if plans else None
    windows: dict[tuple[int, int], dict[int, ThroughputEvent]] = {}
    for each in data.of(ThroughputEvent):
        if _is_measured(each):
            windows.setdefault((each.attempt, each.step), {})[each.writer_rank or 0] = each
    shared = [by_rank for by_rank in windows.values() if len(by_rank) > 1]
    if not shared:
        if plan is None:
            return None
        return Communication(
            plan=plan, costs=None, waiting=None, share=None, advice=(), shares_cores=False
        )
    costs, waiting, share = _costs(shared, plan)
    advice = advise(costs) if costs.share >= WORTH_SAYING else []
    return Communication(
        plan=plan,
        costs=costs,
        waiting=waiting,
        share=share,
        advice=tuple(advice),
        shares_cores=_shares_cores(data.of(WorkerStart)),
    )


def _shares_cores(starts: Sequence[WorkerStart]) -> bool:
    devices = [device for start in starts for device in start.devices]
    on_cpus = bool(devices) and all(device.startswith("CPU") for device in devices)
    return on_cpus and len({start.host for start in starts}) == 1


def step_costs(data: RunData) -> StepCosts | None:
    """What a step of a run costs without communication; None if no throughput was recorded.

    A worker that trains alone, as on the machine on which a script is written, measures it too.
    """
    found = communication(data)
    if found is not None and found.costs is not None:
        return found.costs
    windows = [e for e in data.of(ThroughputEvent) if e.seconds and e.steps]
    if data.workers != 1 or not windows:
        return None
    seconds = sum(each.seconds or 0.0 for each in windows)
    parameters = [start.parameters for start in data.of(FitStart) if start.parameters is not None]
    return StepCosts(
        compute=seconds / sum(each.steps or 0 for each in windows),
        communication=0.0,
        bytes=_FLOAT32 * parameters[-1] if parameters else None,
    )


def _is_measured(each: ThroughputEvent) -> bool:
    seconds = each.seconds
    is_known = seconds is not None and math.isfinite(seconds) and seconds > 0 and bool(each.steps)
    return is_known and "communication" in each.time_fractions


def _costs(
    windows: list[dict[int, ThroughputEvent]], plan: ReductionPlan | None
) -> tuple[StepCosts, float, float]:
    """Means over all windows, by their steps: costs, seconds of waiting, share."""
    steps = compute = sent = other = waited = share = 0.0
    for by_rank in windows:
        waits = {rank: each.time_fractions["communication"] for rank, each in by_rank.items()}
        slowest = by_rank[min(waits, key=lambda rank: waits[rank])]
        seconds, fractions = slowest.seconds or 0.0, slowest.time_fractions
        steps += slowest.steps or 0
        sent += seconds * fractions["communication"]
        compute += seconds * fractions.get("compute", 0.0)
        other += seconds * _rest(fractions)
        mean = sum(waits.values()) / len(waits)
        waited += seconds * (mean - fractions["communication"])
        share += seconds * mean
    total = sent + compute + other
    size = {} if plan is None else {"bytes": plan.bytes, "buckets": max(len(plan.buckets), 1)}
    dtype = "float32" if plan is None else plan.dtype
    costs = StepCosts(
        compute=compute / steps,
        communication=sent / steps,
        other=other / steps,
        dtype=dtype,
        **size,
    )
    return costs, waited / steps, share / total if total > 0 else 0.0


def _rest(fractions: Mapping[str, float]) -> float:
    return sum(
        share for name, share in fractions.items() if name not in ("communication", "compute")
    )
