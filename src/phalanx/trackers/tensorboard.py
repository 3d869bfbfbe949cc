"""TensorBoard: an event file in `<run>/tensorboard/run`, written without TensorFlow."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from phalanx.trackers.protocol import Point, RunInfo, Status, Value


def make() -> TensorBoardTracker:
    """See `protocol.make_tracker`."""
    return TensorBoardTracker()


class TensorBoardTracker:
    """One directory; each start adds an event file, which TensorBoard reads after the others."""

    def __init__(self) -> None:
        self.place = ""
        self._file: BinaryIO | None = None

    def start(self, run: RunInfo) -> str:
        """See `Tracker.start`."""
        directory = run.directory / "tensorboard" / "run"
        directory.mkdir(parents=True, exist_ok=True)
        self.place = f"tensorboard --logdir {run.directory / 'tensorboard'}"
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (directory / name).open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if run.tracker_id is None:
            self.describe({f"config/{name}": value for name, value in run.config.items()})
        return str(directory)

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker.log`."""
        for point in points:
            values = [Summary.Value(tag=n, simple_value=v) for n, v in point.values.items()]
            summary = Summary(value=values)
            self._write(Event(wall_time=point.time, step=point.step, summary=summary))

    def describe(self, facts: Mapping[str, Value]) -> None:
        """See `Tracker.describe`."""
        values = []
        for name, fact in facts.items():
            value = Summary.Value(tag=name)
            metadata = text_metadata.create_summary_metadata(display_name=name, description="")
            value.metadata.ParseFromString(metadata.SerializeToString())
            value.tensor.dtype = 7  # DT_STRING
            value.tensor.tensor_shape.dim.add(size=1)
            value.tensor.string_val.append(str(fact).encode())
            values.append(value)
        self._write(Event(wall_time=time.time(), step=0, summary=Summary(value=values)))

    def log_artifact(self, path: Path) -> None:
        """TensorBoard keeps no files: its path is shown."""
        self.describe({"model_file": str(path)})

    def flush(self) -> bool:
        """See `Tracker.flush`."""
        self._records.flush()
        return True

    def finish(self, status: Status) -> None:
        """See `Tracker.finish`."""
        self._records.close()

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
