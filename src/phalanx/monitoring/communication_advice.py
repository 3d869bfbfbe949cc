"""Which option would shorten a step that waits for its gradients, and by how much.

A step computes for C seconds and sends for S. The gradients of the first layers are ready last, and
the forward pass, about a third of C, cannot overlap with sending. So with k buckets of like size a
step takes about

    max(C + S / k, C / 3 + 2 C / (3 k) + S)

which is within 4 % of what was measured over links of 1 Gbit/s and 200 Mbit/s (docs/benchmarks.md
has the table). With k = 1 that is C + S. bfloat16 halves S for float32 gradients, and a sync every
H steps divides it by H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

BUCKETS = (2, 4, 8)
"""More bring little: the forward pass does not overlap, and each collective has its own cost."""

SMALLEST_BUCKET = 1_000_000
"""Bytes. Below that, it is the number of collectives that costs, and not their size."""

SYNC_EVERY = 50
"""Steps from one sync to the next in the predictions; Douillard et al. 2023 take up to 500."""

_WORTH_IT = 0.02
_HALVED = ("float32",)
_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Where the time of a mean step goes, and what it sends.

    Attributes:
        compute: seconds of the forward and backward pass and of the update.
        communication: seconds in which the step waits for the reduced gradients, without the wait
            for slower workers. What overlaps with computing is not in it.
        other: seconds that no option changes: input, callbacks, saving, slower workers.
        bytes: of one worker's gradients, as they travel; None if that is not known.
        buckets: in how many pieces they travel.
        dtype: in which dtype they travel.
        latency: seconds of a collective of one number.
    """

    compute: float
    communication: float
    other: float = 0.0
    bytes: int | None = None
    buckets: int = 1
    dtype: str = "float32"
    latency: float = 0.0

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.compute + self.communication + self.other

    @property
    def transfer(self) -> float:
        """Seconds that the gradients travel, overlapped or not: S."""
        spread = 2 * self.compute / 3 * (1 - 1 / max(self.buckets, 1))
        return min(self.communication * max(self.buckets, 1), self.communication + spread)

    @property
    def share(self) -> float:
        """The fraction of a step that communication takes."""
        return self.communication / self.step if self.step > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What an option would bring.

    Attributes:
        options: of `phalanx run`.
        what: what they do.
        step: predicted seconds of a step.
        gain: the fraction of the step's time that they save.
        is_exact: whether training gives one device's answer with them, but for rounding.
    """

    options: str
    what: str
    step: float
    gain: float
    is_exact: bool


def predicted_step(costs: StepCosts, *, buckets: int, transfer: float) -> float:
    """Seconds of a step with that many like buckets, which travel for `transfer` seconds in all."""
    compute, k = costs.compute, buckets
    overlapped = max(compute + transfer / k, compute / 3 + 2 * compute / (3 * k) + transfer)
    return overlapped + (k - 1) * costs.latency + costs.other


def advise(costs: StepCosts) -> list[Advice]:
    """The options that would shorten a step by 2 % or more, the best first."""
    found: list[Advice] = []

    def add(options: Sequence[str], what: str, step: float, *, is_exact: bool = True) -> None:
        gain = 1 - step / costs.step if costs.step > 0 else 0.0
        if gain >= _WORTH_IT:
            words = " ".join(options)
            found.append(Advice(options=words, what=what, step=step, gain=gain, is_exact=is_exact))

    sent = costs.transfer
    count = _best_buckets(costs, sent, costs.bytes)
    if count > costs.buckets:
        step = predicted_step(costs, buckets=count, transfer=sent)
        what = f"{count} buckets, of which all but the last travel during the backward pass"
        add([_bucket_option(costs.bytes, count)], what, step)
    if costs.dtype in _HALVED and (costs.bytes is None or costs.bytes >= SMALLEST_BUCKET):
        halved = "--reduce-dtype bfloat16"
        step = predicted_step(costs, buckets=costs.buckets, transfer=sent / 2)
        add([halved], "half the bytes; the sums are rounded to bfloat16", step)
        half = None if costs.bytes is None else costs.bytes // 2
        both = _best_buckets(costs, sent / 2, half)
        if both > costs.buckets:
            step = predicted_step(costs, buckets=both, transfer=sent / 2)
            add([halved, _bucket_option(half, both)], f"both, with {both} buckets", step)
    float32 = sent * _WIDTHS["float32"] / _WIDTHS.get(costs.dtype, 4)
    rarely = costs.compute + costs.other + float32 / 2 / SYNC_EVERY  # The difference is bfloat16.
    add(
        [f"--sync-every {SYNC_EVERY} --outer-optimizer nesterov"],
        "one sync for many local steps (DiLoCo), which trains another way: check the metrics",
        rarely,
        is_exact=False,
    )
    return sorted(found, key=lambda each: (not each.is_exact, each.step, len(each.options)))


def _best_buckets(costs: StepCosts, transfer: float, size: int | None) -> int:
    """The number of buckets with the shortest step; of those within 1 %, the least."""
    counts = [k for k in BUCKETS if size is None or size / k >= SMALLEST_BUCKET]
    steps = {k: predicted_step(costs, buckets=k, transfer=transfer) for k in (1, *counts)}
    least = min(steps.values())
    return min(k for k, step in steps.items() if step <= 1.01 * least)


def _bucket_option(size: int | None, count: int) -> str:
    """The option that makes that many buckets of gradients of `size` bytes."""
    if size is None:
        return "--bucket-mb MB"
    return f"--bucket-mb {math.ceil(size / count / 1e5) / 10:g}"


def of_a_link(
    costs: StepCosts, *, seconds: float, rate: float, size: int, workers: int
) -> StepCosts:
    """The costs of the same step in one piece over another link.

    A ring sends 2 (n - 1) / n times the gradients over each link:
    https://doi.org/10.1016/j.jpdc.2008.09.002

    Args:
        costs: of the step elsewhere; its communication does not count.
        seconds: of an all-reduce of one number over the link.
        rate: bytes a second of an all-reduce of two workers.
        size: bytes of the gradients.
        workers: how many there are.
    """
    transfer = seconds + 2 * (workers - 1) / workers * size / rate
    return replace(costs, communication=transfer, bytes=size, buckets=1, latency=seconds)
