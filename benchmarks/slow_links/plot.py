"""The time of a step by the speed of the link, as a picture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

LINES = ("float32, one piece", "float32, default", "bfloat16, one piece", "bfloat16, 8 buckets")
"""The ways that are drawn, if they were measured."""
UNITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}


def plot(measured: Sequence[tuple[str, Mapping[str, float]]], file: Path) -> None:
    """Draw a line for each of `LINES`.

    Args:
        measured: the rate of each link, as `tc` takes it, and milliseconds a step by way.
        file: the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = sorted(((mbits(rate), took) for rate, took in measured), key=lambda pair: pair[0])
    speeds = [speed for speed, _ in found]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for way in (line for line in LINES if line in found[0][1]):
        axes.plot(speeds, [took[way] / 1000 for _, took in found], marker="o", label=way)
    alone = [took["computing alone"] / 1000 for _, took in found]
    axes.plot(speeds, alone, linestyle="--", color="gray", label="computing alone")
    axes.set(xscale="log", yscale="log", xlabel="link, Mbit/s", ylabel="seconds per step")
    axes.set_xticks(speeds, [f"{speed:g}" for speed in speeds], minor=False)
    seconds = (0.5, 1, 2, 4)
    axes.set_yticks(seconds, [f"{each:g}" for each in seconds], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title("Two workers, 40 MB of gradients a step")
    figure.savefig(file, dpi=150)


def mbits(rate: str) -> float:
    """Mbit/s of a rate as `tc` takes it: "1gbit"."""
    number, unit = re.fullmatch(r"([\d.]+)([a-z]+)", rate).groups()  # type: ignore[union-attr]
    return float(number) * UNITS[unit]
