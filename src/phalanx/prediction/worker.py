"""In a worker of `phalanx predict` or `phalanx evaluate`: `python -m phalanx.prediction.worker`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.cluster.spec import WorkerSpec
from phalanx.data.pipelines.indexed import IndexedPipeline
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.pipelines.pipeline import pipeline
from phalanx.data.sources.images import images
from phalanx.data.sources.protocol import StreamSource
from phalanx.data.sources.resolve_source import Source, resolve_source
from phalanx.data.sources.row_range import rows_of_source
from phalanx.data.streams.stream_pipeline import StreamPipeline
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import ConfigurationError, DataError, NoSamplesError
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.lease.lease_dir import LocalLeaseDir
from phalanx.monitoring.durable_files import write_durably
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.prediction.claims import Claims
from phalanx.prediction.input_files import IMAGES
from phalanx.prediction.outputs import file_of, named_outputs
from phalanx.prediction.plan import (
    EVALUATION,
    MODULE,
    RECORDS,
    ModelRequest,
    Part,
    PredictionPlan,
    complete_parts,
)


def main(arguments: Sequence[str]) -> None:
    """`predict OUTPUT`, or `evaluate REQUEST` with a file of JSON."""
    command, place = arguments
    spec = WorkerSpec.from_environment(os.environ)
    if spec is None or spec.run_dir is None:
        raise ConfigurationError(
            f"{MODULE} is what phalanx predict and phalanx evaluate start; use these commands."
        )
    if command == "predict":
        predict(StorageDir.at(place), spec)
    else:
        evaluate(ModelRequest.from_fields(json.loads(Path(place).read_text())), spec)


def predict(folder: StorageDir, spec: WorkerSpec) -> None:
    """Predict the parts that no other worker has, until none is left."""
    plan = PredictionPlan.read(folder)
    if plan is None:
        raise ConfigurationError(f"There is no prediction in {folder}: use phalanx predict.")
    done = complete_parts(folder)
    left = [part for part in plan.parts if part.name not in done]
    left.sort(key=lambda part: -part.file.size)  # so that no worker begins a long one at the end
    paths = AttemptPaths(run=Path(str(spec.run_dir)), attempt=spec.attempt)
    claims = Claims(LocalLeaseDir(paths.directory / "claims"), spec.rank)
    model = Predictor(plan)
    for part in claims.take_from(left):
        started = time.monotonic()
        try:
            arrays = model.predict(part)
        except Exception as error:
            error.add_note(f"It was in {part.name}, of {part.file.path}.")
            raise
        ending, content = file_of(arrays, plan.format)
        name, rows = f"{part.name}.{ending}", len(next(iter(arrays.values())))
        folder.write(name, content)
        record = {
            "file": name,
            "input": part.file.path,
            "rows": rows,
            "outputs": {
                key: {"dtype": str(one.dtype), "shape": one.shape} for key, one in arrays.items()
            },
        }
        (folder / RECORDS).write(f"{part.name}.json", json.dumps(record).encode())
        print(f"{name}: {rows} rows in {time.monotonic() - started:.1f} s", flush=True)


class Predictor:
    """A model, and the rows that it is given."""

    def __init__(self, plan: PredictionPlan) -> None:
        """Load the model."""
        self._request = plan.request
        self._model = load_model(plan.request)
        self._map = named_function(plan.request.map)
        self._opened = lru_cache(maxsize=1)(self._open)  # parts of a file follow each other
        self._progress = Progress()

    def predict(self, part: Part) -> dict[str, np.ndarray]:
        """The outputs for the rows of a part, by name.

        Raises:
            DataError: the rows cannot be read, or the model does not return one for each.
        """
        source = self._opened(part.file.path, part.file.kind)
        total = 0 if source is None else source.num_samples
        if source is None or total == 0:
            return self._nothing(part)
        if total is None:
            raise DataError(
                f"Asked to predict {part.file.path}, whose rows are not counted. Give its source "
                "their counts."
            )
        rows = part.rows(total, self._request.batch_size)
        if not rows:
            return self._nothing(part)
        outputs = self._model.predict(
            self._batches(rows_of_source(source, rows)), verbose=0, callbacks=[self._progress]
        )
        arrays = named_outputs(self._model, outputs)
        for name, array in arrays.items():
            if not array.shape or len(array) != len(rows):
                raise DataError(
                    f"Asked to predict {len(rows)} rows of {part.file.path}; the model's {name!r} "
                    f"has the shape {array.shape}. A model must return one row for each."
                )
        return arrays

    def _batches(self, source: Source) -> tf.data.Dataset:
        """The batches of a source, all of which are this worker's."""
        options = PipelineOptions(
            global_batch_size=self._request.batch_size, map=self._map, shuffle=False
        )
        alone = ReplicaTopology()
        if isinstance(source, StreamSource):
            return StreamPipeline(source, options).dataset(alone)
        return IndexedPipeline(source, options).dataset(alone)

    def _open(self, path: str, kind: str) -> Source | None:
        """The rows of a file; None where it has none."""
        try:
            return open_source(self._request, [path], kind)
        except NoSamplesError:
            return None

    def _nothing(self, part: Part) -> dict[str, np.ndarray]:
        """The outputs for no rows."""
        outputs = getattr(self._model, "outputs", None)
        if not outputs:
            raise DataError(
                f"Asked to predict {part.name}, which has no rows; the shape of the model's "
                "outputs is not known without one. Leave the file out, or give smaller --parts."
            )
        inputs = self._model.inputs
        spec = self._model.compute_output_spec(inputs[0] if len(inputs) == 1 else inputs)
        empty = keras.tree.map_structure(
            lambda one: np.zeros([0, *(size or 0 for size in one.shape[1:])], one.dtype), spec
        )
        return named_outputs(self._model, empty)


def evaluate(request: ModelRequest, spec: WorkerSpec) -> None:
    """Evaluate on all files; the chief writes the metrics into the run directory."""
    model = load_model(request)
    source = open_source(request, [file.path for file in request.files], request.files[0].kind)
    dataset = pipeline(source, request.batch_size, map=named_function(request.map), shuffle=False)
    metrics = model.evaluate(dataset, verbose=0, return_dict=True)
    if spec.is_chief:
        found = {name: float(value) for name, value in metrics.items()}
        content = {"rows": source.num_samples, "metrics": found}
        write_durably(Path(str(spec.run_dir)) / EVALUATION, json.dumps(content) + "\n")


def load_model(request: ModelRequest) -> Any:
    """The model, once the modules are imported that may register its own classes."""
    for name in (*request.imports, request.source, request.map):
        if name is not None:
            importlib.import_module(name.partition(":")[0])
    return keras.models.load_model(request.model)


def open_source(request: ModelRequest, paths: list[str], kind: str) -> Source:
    """What `phalanx.data.pipeline` takes, from the files."""
    function = named_function(request.source)
    if function is not None:
        return resolve_source(function(paths))
    return images(paths[0]) if kind == IMAGES else resolve_source(paths)


def named_function(name: str | None) -> Callable[..., Any] | None:
    """What `MODULE:FUNCTION` names; None for None."""
    if name is None:
        return None
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


class Progress(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Counts batches over all parts, for hang detection and `phalanx watch`."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self._batches = 0
        phase_tracker.at(step=0)

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch is computed."""
        phase_tracker.enter("compute")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch is done."""
        self._batches += 1
        phase_tracker.at(step=self._batches)


if __name__ == "__main__":
    main(sys.argv[1:])
