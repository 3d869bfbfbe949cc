"""Event files for TensorBoard, written from numbers and histograms that are already made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalar
from tensorboard.plugins.histogram import metadata as histogram_metadata

from phalanx.errors import ConfigurationError
from phalanx.worker.written_once import written_by_all_workers

Charts = Mapping[str, Mapping[str, Sequence[str]]]
"""Category -> chart's title -> regular expressions of the tags that the chart draws."""


class TensorBoardRun:
    """One run in TensorBoard: a directory to which scalars and histograms are appended.

    Opening a directory again adds an event file next to those in it. TensorBoard reads the
    files of a directory in turn and does not go back, so two open writers of one directory
    lose points on the page: give each writer a directory of its own.

    Usable wherever Python runs: under a strategy, in a name scope, while a function is traced,
    or under `tf.summary.record_if(False)`, none of which changes what is written.

    Args:
        directory: the run's directory; TensorBoard names the run by its path below the logdir.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        with tf.init_scope(), tf.device("CPU:0"), written_by_all_workers():
            self._writer = tf.summary.create_file_writer(str(self.directory))
        self._closed = False

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one number for each tag, as float32; NaN and infinity are shown as such."""
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=float(value))
        self._write(step, summary)

    def histograms(self, step: int, values: Mapping[str, ArrayLike]) -> None:
        """Write one histogram for each tag.

        Args:
            step: the training step.
            values: by tag the buckets, of shape `[buckets, 3]`: left edge, right edge, count.

        Raises:
            ConfigurationError: buckets of another shape, an edge or count that is not finite, a
                left edge beyond the right one, or a negative count.
        """
        summary = tf.compat.v1.Summary()
        for tag, buckets in values.items():
            array = _checked(tag, buckets)
            # By hand: tf.make_tensor_proto takes several times as long.
            tensor = summary.value.add(tag=tag, metadata=_HISTOGRAM).tensor
            tensor.dtype = tf.float64.as_datatype_enum
            for size in array.shape:
                tensor.tensor_shape.dim.add(size=size)
            tensor.tensor_content = array.tobytes()
        self._write(step, summary)

    def layout(self, charts: Charts) -> None:
        """Write the layout of the Custom Scalars page; see `write_layout`."""
        self._write(0, custom_scalar.pb(_layout(charts)))

    def flush(self) -> None:
        """Write buffered events to disk; TensorFlow does so every two minutes on its own."""
        with self._outside():
            self._writer.flush()

    def close(self) -> None:
        """Flush and close; a second time does nothing."""
        if not self._closed:
            with self._outside():
                self._writer.close()
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, step: int, summary: Any) -> None:
        if not summary.value:
            return
        # One op for all tags: an op for each costs many times as much.
        with self._outside(), self._writer.as_default(), tf.summary.record_if(True):
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)

    @contextmanager
    def _outside(self) -> Iterator[None]:
        if self._closed:
            raise ValueError(f"The TensorBoard run {self.directory} is closed.")
        with tf.init_scope(), tf.device("CPU:0"), written_by_all_workers():
            yield


def write_layout(directory: str | os.PathLike[str], charts: Charts) -> None:
    """Lay out TensorBoard's Custom Scalars page, on which one chart shows many tags and runs.

    Written before a `TensorBoardRun` of the same directory is opened, or by its `layout`; in
    the logdir itself it makes a run named ".".

    Args:
        directory: any directory below the logdir.
        charts: category -> chart's title -> regular expressions of the tags that the chart
            draws. TensorBoard matches them from the start of a tag, not to its end.
    """
    with TensorBoardRun(directory) as run:
        run.layout(charts)


def _layout(charts: Charts) -> Any:
    return layout_pb2.Layout(
        category=[
            layout_pb2.Category(
                title=category,
                chart=[
                    layout_pb2.Chart(
                        title=title, multiline=layout_pb2.MultilineChartContent(tag=list(tags))
                    )
                    for title, tags in titles.items()
                ],
            )
            for category, titles in charts.items()
        ]
    )


def _checked(tag: str, buckets: ArrayLike) -> np.ndarray:
    array = np.asarray(buckets, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 3:
        raise ConfigurationError(
            f"The histogram {tag!r} needs buckets of shape [buckets, 3] (left edge, right edge, "
            f"count); found shape {list(array.shape)}."
        )
    left, right, count = array.T
    good = np.isfinite(array).all(axis=1) & (left <= right) & (count >= 0)
    if not good.all():
        raise ConfigurationError(
            f"The histogram {tag!r} needs finite edges, left <= right, and counts from 0; found "
            f"the bucket {array[~good][0].tolist()}. Count values that are not finite apart."
        )
    return array


# TensorBoard's own copy of the message, as TensorFlow's.
_HISTOGRAM = tf.compat.v1.SummaryMetadata.FromString(
    histogram_metadata.create_summary_metadata("", "").SerializeToString()
)
