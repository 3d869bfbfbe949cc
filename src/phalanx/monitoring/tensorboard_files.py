"""Reading event files back: what TensorBoard would show, as numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import (
    SCALARS,
    TENSORS,
    EventAccumulator,
)
from tensorboard.plugins.custom_scalar import layout_pb2, metadata
from tensorboard.util import tensor_util

from phalanx.errors import ConfigurationError

Directory = str | os.PathLike[str]


def read_scalars(directory: Directory) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in one run's directory: tag -> (step, value), in the order of writing.

    Raises:
        ConfigurationError: there is no event file in the directory itself.
    """
    accumulator = _open(directory)
    found = {
        tag: [(step, float(value.item())) for step, value in points]
        for tag, points in _tensors(accumulator, "scalars")
    }
    for tag in accumulator.Tags()[SCALARS]:
        points = [(event.step, float(event.value)) for event in accumulator.Scalars(tag)]
        found[tag] = found.get(tag, []) + points
    return found


def read_histograms(directory: Directory) -> dict[str, list[tuple[int, np.ndarray]]]:
    """Every histogram in one run's directory: tag -> (step, buckets `[k, 3]`).

    A bucket is its left edge, its right edge and its count.

    Raises:
        ConfigurationError: there is no event file in the directory itself.
    """
    return {
        tag: [(step, value.astype(np.float64)) for step, value in points]
        for tag, points in _tensors(_open(directory), "histograms")
    }


def read_layout(directory: Directory) -> dict[str, dict[str, list[str]]]:
    """The layout of the Custom Scalars page: category -> title -> tag patterns; {} for none.

    Raises:
        ConfigurationError: there is no event file in the directory itself.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for _, points in _tensors(_open(directory), metadata.PLUGIN_NAME):
        layout = layout_pb2.Layout.FromString(points[-1][1].item())
        for category in layout.category:
            charts = {chart.title: list(chart.multiline.tag) for chart in category.chart}
            found[category.title] = charts
    return found


def _open(directory: Directory) -> Any:
    if not any(Path(directory).glob("*tfevents*")):
        raise ConfigurationError(f"There is no TensorBoard event file in {directory}.")
    everything = {SCALARS: 0, TENSORS: 0}
    accumulator = EventAccumulator(
        os.fspath(directory), size_guidance=everything, purge_orphaned_data=False
    )
    return accumulator.Reload()


def _tensors(accumulator: Any, plugin: str) -> Iterator[tuple[str, list[tuple[int, np.ndarray]]]]:
    for tag in accumulator.Tags()[TENSORS]:
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name == plugin:
            yield (
                tag,
                [
                    (event.step, tensor_util.make_ndarray(event.tensor_proto))
                    for event in accumulator.Tensors(tag)
                ],
            )
