"""A training step as files: its batch, the weights before it, and how to build the model.

`<run>/captures/worker-1-step-120/` holds `capture.json`, `batch.npz`, `weights.npz` and, where
Keras could write the model down, `model.json`. No file is pickled: reading runs no code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.checkpoint.dtypes import from_storage, to_storage
from phalanx.checkpoint.serialization import decode, encode
from phalanx.monitoring.durable_files import PRIVATE_DIR, move_durably

SCHEMA = 1
FOLDER = "captures"


@dataclass(frozen=True, kw_only=True)
class CapturedPart:
    """What one replica held of the batch.

    Attributes:
        replica: its number in the worker group.
        count: how many of its rows are samples; 0 where its one row is a stand-in.
        start: the place of its first row in the global batch.
        rows: the number of each sample in the data, where known.
        places: where each sample lies, in words, where known.
        is_bad: whether this replica's own gradients were not finite.
    """

    replica: int
    count: int
    start: int
    rows: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class StepCapture:
    """What is known of a step next to its arrays.

    Attributes:
        rank: the worker.
        step: the step, counted from 1.
        replicas: replicas in the worker group.
        total: samples of the global batch.
        variable: the first variable whose total gradient was not finite; empty where the loss
            was looked at alone.
        policy: what was done with such a step; see `phalanx.gradients.clipper_chain`.
        loss_scale: the factor on the loss.
        parts: this worker's replicas.
        model: why `model.json` is missing; empty where it is there.
    """

    rank: int
    step: int
    replicas: int
    total: int
    variable: str
    policy: str
    loss_scale: float
    parts: tuple[CapturedPart, ...]
    model: str = ""

    @property
    def name(self) -> str:
        """The name of its directory."""
        return f"worker-{self.rank}-step-{self.step}"


@dataclass(frozen=True, kw_only=True)
class CaptureInfo:
    """A step, read back.

    Attributes:
        about: what is known of it.
        batches: for each part, `fit`'s data as NumPy arrays: `(x,)`, `(x, y)` or `(x, y, weight)`.
        weights: the model's variables by their names in `phalanx.checkpoint.variable_names`.
        paths: Keras's path of each variable.
        config: what `keras.saving.serialize_keras_object` gave of the model, or None.
    """

    about: StepCapture
    batches: tuple[Any, ...]
    weights: Mapping[str, np.ndarray]
    paths: Mapping[str, str]
    config: Mapping[str, Any] | None


def write_captured(folder: Path, captured: CaptureInfo) -> Path:
    """Write it below `folder`, whole or not at all; one of the same name is replaced.

    Returns:
        Its directory.
    """
    target = folder / captured.about.name
    partial = folder / f".{captured.about.name}.part"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=PRIVATE_DIR, parents=True)
    arrays: dict[str, np.ndarray] = {}
    structure = [_named_leaves(batch, arrays, f"{i}") for i, batch in enumerate(captured.batches)]
    document = {
        "schema": SCHEMA,
        "about": asdict(captured.about),
        "batches": structure,
        "paths": dict(captured.paths),
        "dtypes": {
            "batch": _save(partial / "batch.npz", arrays),
            "weights": _save(partial / "weights.npz", captured.weights),
        },
    }
    (partial / "capture.json").write_text(json.dumps(document), encoding="utf-8")
    if captured.config is not None:
        (partial / "model.json").write_text(json.dumps(captured.config), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    move_durably(partial, target)
    return target


def read_captured(directory: Path) -> CaptureInfo:
    """What `write_captured` wrote.

    Raises:
        OSError, ValueError, KeyError: it is not there, or not whole.
    """
    document = json.loads((directory / "capture.json").read_text(encoding="utf-8"))
    about = document["about"]
    parts = tuple(
        CapturedPart(**{**part, "rows": tuple(part["rows"]), "places": tuple(part["places"])})
        for part in about["parts"]
    )
    arrays = _load(directory / "batch.npz", document["dtypes"]["batch"])
    model = directory / "model.json"
    return CaptureInfo(
        about=StepCapture(**{**about, "parts": parts}),
        batches=tuple(_leaves(decode(each, {}), arrays) for each in document["batches"]),
        weights=_load(directory / "weights.npz", document["dtypes"]["weights"]),
        paths=document["paths"],
        config=json.loads(model.read_text(encoding="utf-8")) if model.exists() else None,
    )


def step_of(captured: Path) -> str:
    """The step in the name of a captured step's directory."""
    return captured.name.rpartition("-")[2]


def captures_in(run: Path) -> list[Path]:
    """The captured steps of a run, the earliest step first; `run` may be one itself."""
    if (run / "capture.json").exists():
        return [run]
    found = [path.parent for path in (run / FOLDER).glob("worker-*-step-*/capture.json")]
    return sorted(found, key=lambda path: (int(step_of(path)), path.name))


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Write the arrays; the names of their dtypes, of which NumPy's format knows not all."""
    plain = {name: np.asarray(a, "S") if a.dtype == object else a for name, a in arrays.items()}
    bits = {name: a if a.dtype.kind == "S" else to_storage(a) for name, a in plain.items()}
    # By place: a name may be none that a file can have.
    by_place: dict[str, Any] = {str(i): a for i, a in enumerate(bits.values())}
    np.savez(path, **by_place)
    return {name: "" if a.dtype.kind == "S" else a.dtype.name for name, a in plain.items()}


def _load(path: Path, dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        read = {name: file[str(i)] for i, name in enumerate(dtypes)}
    return {n: from_storage(a, dtypes[n]) if dtypes[n] else a for n, a in read.items()}


def _named_leaves(batch: Any, arrays: dict[str, np.ndarray], prefix: str) -> Any:
    """The batch's structure as JSON with a name for each array, which goes into `arrays`."""

    def name(leaf: Any) -> str | None:
        if leaf is None:
            return None
        own = f"{prefix}/{len(arrays)}"
        arrays[own] = np.asarray(leaf)
        return own

    return encode(tf.nest.map_structure(name, batch), {}, prefix)


def _leaves(structure: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    return tf.nest.map_structure(lambda name: None if name is None else arrays[name], structure)
