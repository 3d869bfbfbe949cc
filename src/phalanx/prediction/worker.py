"""In a worker of `phalanx predict` or `phalanx evaluate`: `python -m phalanx.prediction.worker`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from textwrap import shorten
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
from phalanx.prediction.input_files import IMAGES, InputFile, assert_unchanged
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
    plan.check_model()  # once it is loaded, as it may change until then
    for part in claims.take_from(left):
        started = time.monotonic()
        try:
            arrays = model.predict(part)
            assert_unchanged(part.file)
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
        self._map = named_function("--map", plan.request.map)
        # Parts of a file follow each other, and several of them may have no rows.
        self._opened = lru_cache(maxsize=1)(self._open)
        self._nothing = lru_cache(maxsize=1)(self._first_batch_without_rows)
        self._progress = PredictionProgress()

    def predict(self, part: Part) -> dict[str, np.ndarray]:
        """The outputs for the rows of a part, by name.

        Raises:
            DataError: the rows cannot be read, or the model does not return one for each.
        """
        rows = part.rows(self._rows_of(part.file), self._request.batch_size)
        if rows:
            return self._outputs(part.file, rows)
        if self._rows_of(part.file):
            return self._nothing(part.file)
        return self._outputs_of_an_empty_file

    def _rows_of(self, file: InputFile) -> int:
        """How many rows a file has."""
        source = self._opened(file)
        if source is None:
            return 0
        if source.num_samples is None:
            raise DataError(
                f"Asked to predict {file.path}, whose rows are not counted. Give its source "
                "their counts."
            )
        return source.num_samples

    def _outputs(self, file: InputFile, rows: range) -> dict[str, np.ndarray]:
        """The outputs for some rows of a file that has them."""
        source = self._opened(file)
        assert source is not None, file
        outputs = self._model.predict(
            self._batches(rows_of_source(source, rows)), verbose=0, callbacks=[self._progress]
        )
        arrays = named_outputs(self._model, outputs)
        for name, array in arrays.items():
            if not array.shape or len(array) != len(rows):
                raise DataError(
                    f"Asked to predict {len(rows)} rows of {file.path}; the model's {name!r} "
                    f"has the shape {array.shape}. A model must return one row for each."
                )
        return arrays

    def _first_batch_without_rows(self, file: InputFile) -> dict[str, np.ndarray]:
        """The outputs for no rows of a file that has some.

        Only a prediction gives their shapes and types for every model: a subclassed one does not
        name them, and what a layer says of itself may be wrong. It is of a whole batch, since a
        model may take no other number of rows.
        """
        first = range(min(self._rows_of(file), self._request.batch_size))
        return {name: array[:0] for name, array in self._outputs(file, first).items()}

    @cached_property
    def _outputs_of_an_empty_file(self) -> dict[str, np.ndarray]:
        """As those of a file that has rows, the smallest one; else as the model describes them.

        Raises:
            DataError: no file has a row, and the model does not say what it returns.
        """
        files = self._request.files
        for file in sorted(files, key=lambda one: one.size):
            if self._rows_of(file):
                return self._nothing(file)
        outputs = getattr(self._model, "outputs", None)
        if not outputs or not all(isinstance(one, keras.KerasTensor) for one in outputs):
            raise DataError(
                f"Asked to predict {len(files)} file(s), none of which has a row; the shape of the "
                f"outputs of {self._request.model} is not known without one. Give a file that has "
                "rows."
            )
        inputs = self._model.inputs
        spec = self._model.compute_output_spec(inputs[0] if len(inputs) == 1 else inputs)
        empty = keras.tree.map_structure(
            lambda one: np.zeros(
                [0, *(size or 0 for size in one.shape[1:])],
                np.str_ if one.dtype == "string" else one.dtype,
            ),
            spec,
        )
        return named_outputs(self._model, empty)

    def _batches(self, source: Source) -> tf.data.Dataset:
        """The batches of a source, all of which are this worker's."""
        options = PipelineOptions(
            global_batch_size=self._request.batch_size, map=self._map, shuffle=False
        )
        alone = ReplicaTopology()
        if isinstance(source, StreamSource):
            return StreamPipeline(source, options).dataset(alone)
        return IndexedPipeline(source, options).dataset(alone)

    def _open(self, file: InputFile) -> Source | None:
        """The rows of a file; None where it has none."""
        try:
            return open_source(self._request, [file.path], file.kind)
        except NoSamplesError:
            return None


def evaluate(request: ModelRequest, spec: WorkerSpec) -> None:
    """Evaluate on all files; the chief writes the metrics into the run directory."""
    model = load_model(request)
    source = open_source(request, [file.path for file in request.files], request.files[0].kind)
    function = named_function("--map", request.map)
    dataset = pipeline(source, request.batch_size, map=function, shuffle=False)
    try:
        metrics = model.evaluate(dataset, verbose=0, return_dict=True)
    except Exception as error:
        sample = dataset.element_spec
        if not (isinstance(sample, tuple) and len(sample) > 1):  # a model may need no labels
            error.add_note(
                f"The samples have no labels: a batch is {sample}. A sample must be (x, y) or "
                "(x, y, sample_weight); --source or --map can make it so."
            )
        raise
    for file in request.files:
        assert_unchanged(file)
    if spec.is_chief:
        # A metric may be a vector, such as F1Score, which has a value for each class.
        found = {name: _in_json(np.asarray(value, float)) for name, value in metrics.items()}
        content = {"rows": source.num_samples, "metrics": found}
        write_durably(Path(str(spec.run_dir)) / EVALUATION, json.dumps(content) + "\n")


def _in_json(metric: np.ndarray) -> Any:
    """A metric's value or values; None for one that is not finite: JSON has only numbers."""
    values = metric.astype(object)
    values[~np.isfinite(metric)] = None
    return values.tolist()


def load_model(request: ModelRequest) -> Any:
    """The model, once the modules are imported that may register its own classes."""
    for name in (*request.imports, request.source, request.map):
        if name is not None:
            importlib.import_module(name.partition(":")[0])
    try:
        return keras.models.load_model(request.model)
    except (TypeError, ValueError) as error:
        found = shorten(str(error).partition("Full object config")[0], 500)
        raise ConfigurationError(
            f"Cannot load MODEL {request.model}: {found} If the model has classes of your own, "
            "name the module that registers them with --import."
        ) from error


def open_source(request: ModelRequest, paths: list[str], kind: str) -> Source:
    """What `phalanx.data.pipeline` takes, from the files."""
    function = named_function("--source", request.source)
    if function is not None:
        return resolve_source(function(paths))
    return images(paths[0]) if kind == IMAGES else resolve_source(paths)


def named_function(option: str, name: str | None) -> Callable[..., Any] | None:
    """What the `MODULE:FUNCTION` of an option names; None for None.

    Raises:
        ConfigurationError: the module has no such function.
    """
    if name is None:
        return None
    module_name, _, function_name = name.partition(":")
    module = importlib.import_module(module_name)
    found: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(found):
        raise ConfigurationError(
            f"{option} asks for the function {function_name!r} of {module.__file__}; found "
            f"{'none of that name' if found is None else repr(found)}. Check the name."
        )
    return found


class PredictionProgress(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
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
