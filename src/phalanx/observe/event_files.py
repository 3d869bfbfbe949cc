"""Reading event files back: what TensorBoard would show, as numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2, metadata
from tensorboard.util import tensor_util

from phalanx.errors import OptionError

Directory = str | os.PathLike[str]


def read_scalars(directory: Directory) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in one run's directory: tag -> (step, value), in the order of writing.

    Raises:
        OptionError: there is no event file in the directory itself.
    """
    return {
        tag: [(step, float(value.item())) for step, value in points]
        for tag, points in _read(directory, "scalars")
    }


def read_histograms(directory: Directory) -> dict[str, list[tuple[int, np.ndarray]]]:
    """Every histogram in one run's directory: tag -> (step, buckets `[k, 3]`).

    A bucket is its left edge, its right edge and its count.

    Raises:
        OptionError: there is no event file in the directory itself.
    """
    return {
        tag: [(step, value.astype(np.float64)) for step, value in points]
        for tag, points in _read(directory, "histograms")
    }


def read_layout(directory: Directory) -> dict[str, dict[str, list[str]]]:
    """The layout of the Custom Scalars page: category -> title -> tag patterns; {} for none.

    Raises:
        OptionError: there is no event file in the directory itself.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for _, points in _read(directory, metadata.PLUGIN_NAME):
        layout = layout_pb2.Layout.FromString(points[-1][1].item())
        for category in layout.category:
            charts = {chart.title: list(chart.multiline.tag) for chart in category.chart}
            found[category.title] = charts
    return found


def _read(directory: Directory, plugin: str) -> Iterator[tuple[str, list[tuple[int, np.ndarray]]]]:
    if not any(Path(directory).glob("*tfevents*")):
        raise OptionError(f"There is no TensorBoard event file in {directory}.")
    accumulator = EventAccumulator(
        os.fspath(directory), size_guidance={TENSORS: 0}, purge_orphaned_data=False
    )
    accumulator.Reload()
    for tag in accumulator.Tags()[TENSORS]:
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name == plugin:
            yield (
                tag,
                [
                    (event.step, tensor_util.make_ndarray(event.tensor_proto))
                    for event in accumulator.Tensors(tag)
                ],
            )
