"""What a replay found, in words."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.debug.replay import Replayed, Sample
from phalanx.debug.trace import Range
from phalanx.state.captured import CapturedStep

_MOST_SAMPLES = 8


def in_words(found: Replayed, about: CapturedStep) -> list[str]:
    """Lines for people: what was run, where it went wrong, and what to do."""
    part = found.part
    whose = f"worker {about.rank}"
    if len(about.parts) > 1:
        whose += f", replica {part.replica}"
    lines = [
        f"step {about.step}: {part.count} of the {about.total} samples of the global batch, those "
        f"of {whose}"
    ]
    if not found.phase:
        return [*lines, _not_again(about, found)]
    lines.append(f"first wrong: {_where(found)}")
    lines += [f"  was given: {_range(given)}" for given in found.given]
    if found.variable:
        of = "" if found.phase == "weights" else "the gradient of "
        lines.append(f"variable: {of}{found.variable}")
    lines.append(f"samples: {_samples(found.samples)}")
    if found.cause is not None:
        lines += [f"cause: {found.cause.said}", f"remedy: {found.cause.remedy}"]
    return lines


def growth_in_words(growth: Sequence[tuple[str, float]]) -> list[str]:
    """A line for each layer: its name and the largest absolute value that it gave."""
    width = max((len(name) for name, _ in growth), default=0)
    return [f"  {name:<{width}}  {largest:.4g}" for name, largest in growth]


def _where(found: Replayed) -> str:
    operation = f", operation {found.operation} in {found.dtype}" if found.operation else ""
    if found.phase == "data":
        return f"the data{f'; it shows in {found.layer}' if found.layer else ''}"
    if found.phase == "weights":
        return f"the weights{f'; it shows in {found.layer}' if found.layer else ''}"
    layer = found.layer or "the loss's gradient"
    return f"{layer}, {found.phase} pass{operation}"


def _range(given: Range) -> str:
    said = f"{given.size} numbers from {given.least:.6g} to {given.greatest:.6g}"
    return f"{said}, {given.nonfinite} not finite" if given.nonfinite else said


def _samples(samples: Sequence[Sample]) -> str:
    if not samples:
        return "none by itself, only all together"
    shown = [_sample(each) for each in samples[:_MOST_SAMPLES]]
    rest = len(samples) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")


def _sample(sample: Sample) -> str:
    said = f"{sample.in_batch} of the global batch"
    if sample.place:
        return f"{said} ({sample.place})"
    return f"{said} (sample {sample.row} of the data)" if sample.row is not None else said


def _not_again(about: CapturedStep, found: Replayed) -> str:
    largest = max((value for _, value in found.growth), default=0.0)
    if not any(part.is_bad for part in about.parts):
        return (
            "all is finite here, as it was on each worker: only the sum over the replicas was not. "
            f"The largest activation is {largest:.4g}. Lower the learning rate, or clip with "
            "phalanx.clip before the sum."
        )
    return (
        f"all is finite this time; the largest activation is {largest:.4g}. What differs here: "
        "eager operations in place of compiled ones, this machine's processor, chance that is no "
        "keras.random seed."
    )
