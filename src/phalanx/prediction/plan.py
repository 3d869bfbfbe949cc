"""What `phalanx predict` has to do, and what of it is done: `predictions.json` in the output."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from hashlib import file_digest
from typing import TYPE_CHECKING, Any, Literal, get_args

from phalanx.errors import ConfigurationError
from phalanx.lease.records import LEASE_DIR
from phalanx.prediction.input_files import InputFile

if TYPE_CHECKING:
    from phalanx.checkpoint.storage_dir import StorageDir  # imports fsspec, which takes a while

MODULE = "phalanx.prediction.worker"
"""What the workers of both commands run."""

EVALUATION = "evaluation.json"
"""The metrics that `phalanx evaluate` found, in the run directory."""

MANIFEST = "predictions.json"
RECORDS = ".parts"
"""The directory with a record of each part that is complete."""

Format = Literal["npy", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)

PARTS_PER_WORKER = 4
"""Parts for each worker where there are fewer files than workers: little is left at the end."""


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """What both commands ask of a worker.

    Attributes:
        model: the path of the `.keras` file.
        files: what to read.
        batch_size: rows of a batch, of all workers together where they compute in step.
        source: `MODULE:FUNCTION` that makes a source of a list of paths; None for the kind's own.
        map: `MODULE:FUNCTION` of a sample; None for the sample itself.
        imports: modules to import before the model is loaded.
    """

    model: str
    files: tuple[InputFile, ...]
    batch_size: int
    source: str | None = None
    map: str | None = None
    imports: tuple[str, ...] = ()

    @classmethod
    def from_fields(cls, read: Mapping[str, Any]) -> ModelRequest:
        """The request that `asdict` gave these fields of, through JSON."""
        files = tuple(InputFile(**one) for one in read["files"])
        return cls(**{**read, "files": files, "imports": tuple(read["imports"])})


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some rows of a file, whose predictions are one file of the output.

    Attributes:
        name: of that file, without its ending.
        file: which rows are from.
        number: counts the parts of the file, from 0.
        of: parts of the file.
    """

    name: str
    file: InputFile
    number: int
    of: int

    def rows(self, total: int, batch_size: int) -> range:
        """Which of the `total` rows of the file.

        Parts are cut between batches, so a batch has the same rows whatever the number of parts.
        """
        batches = -(-total // batch_size)
        first, last = (
            min(total, batches * number // self.of * batch_size)
            for number in (self.number, self.number + 1)
        )
        return range(first, last)


@dataclass(frozen=True, kw_only=True)
class PredictionPlan:
    """One prediction.

    Attributes:
        model_sha256: of the model's file.
        request: the model and the input.
        format: of the output.
        parts_per_file: how many parts each file has.
    """

    model_sha256: str
    request: ModelRequest
    format: Format
    parts_per_file: int

    def __post_init__(self) -> None:
        (name, count), *_ = Counter(file.name for file in self.request.files).most_common(1)
        if count > 1:
            first, second, *_ = (one.path for one in self.request.files if one.name == name)
            raise ConfigurationError(
                f"The predictions of {first} and {second} would both be {name!r}. Rename one of "
                "them, or predict them one after the other."
            )

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order of the rows."""
        of = self.parts_per_file
        return tuple(
            Part(
                name=file.name if of == 1 else f"{file.name}-{number:05d}-of-{of:05d}",
                file=file,
                number=number,
                of=of,
            )
            for file in self.request.files
            for number in range(of)
        )

    def to_json(self, records: Mapping[str, Any] | None = None) -> bytes:
        """The manifest; with `records`, that of a prediction that is complete."""
        outputs = None if records is None else [records[part.name] for part in self.parts]
        content = {"schema": 1, "complete": outputs is not None, "plan": asdict(self)}
        if outputs is not None:
            content |= {"rows": sum(one["rows"] for one in outputs), "outputs": outputs}
        return json.dumps(content, indent=2).encode() + b"\n"

    @classmethod
    def read(cls, folder: StorageDir) -> PredictionPlan | None:
        """The plan of a directory; None where there is none.

        Raises:
            ConfigurationError: its manifest cannot be read.
        """
        if not folder.has(MANIFEST):
            return None
        try:
            read = json.loads(folder.read(MANIFEST))["plan"]
            request = ModelRequest.from_fields(read["request"])
            return cls(**{**read, "request": request})
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"Cannot read {folder / MANIFEST}: {type(error).__name__}: {error}. Give another "
                "OUTPUT, or --restart to begin again."
            ) from error

    def check_model(self) -> None:
        """See that the model's file is that of the plan.

        Raises:
            ConfigurationError: it has changed.
        """
        if digest_of(self.request.model) != self.model_sha256:
            raise ConfigurationError(
                f"MODEL {self.request.model} has changed since phalanx predict read it. Give "
                "another OUTPUT, or --restart to predict all with the new one."
            )

    def check_continues(self, earlier: PredictionPlan, folder: StorageDir) -> None:
        """See that what was predicted before is a part of this.

        Raises:
            ConfigurationError: it is of another model, or another input; names both.
        """
        for what, before, now in _compared(earlier, self):
            if before != now:
                raise ConfigurationError(
                    f"{folder} has predictions with {what} {before}; asked for {now}. Give another "
                    "OUTPUT, or --restart to remove them and begin again."
                )


def digest_of(model: str) -> str:
    """The SHA-256 of a model's file."""
    with open(model, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _compared(before: PredictionPlan, now: PredictionPlan) -> list[tuple[str, Any, Any]]:
    """What must be the same, with its two values."""

    def model(plan: PredictionPlan) -> str:
        return f"{plan.request.model} (sha256 {plan.model_sha256[:12]})"

    same_model = before.model_sha256 == now.model_sha256
    compared: list[tuple[str, Any, Any]] = [
        ("the model", model(before), model(before if same_model else now)),
        ("the input", *_files_that_differ(before.request.files, now.request.files)),
        ("--format", before.format, now.format),
        ("--parts", before.parts_per_file, now.parts_per_file),
    ]
    for field in fields(ModelRequest):
        if field.name not in ("model", "files"):
            values = (getattr(plan.request, field.name) for plan in (before, now))
            option = "import" if field.name == "imports" else field.name.replace("_", "-")
            compared.append((f"--{option}", *values))
    return compared


def _files_that_differ(before: Sequence[InputFile], now: Sequence[InputFile]) -> tuple[str, str]:
    """Both lists in words, which are equal where the files are."""
    if len(before) != len(now):
        return f"of {len(before)} file(s)", f"{len(now)}"
    for one, other in zip(before, now, strict=True):
        if (one.name, one.size, one.version) != (other.name, other.size, other.version):
            return _described(one), _described(other)
    return "", ""


def _described(file: InputFile) -> str:
    return f"{file.path} ({file.size} bytes, version {file.version[:24]})"


def complete_parts(folder: StorageDir) -> dict[str, Any]:
    """The records of the parts that are complete, by their names: the output is there too."""
    records = folder / RECORDS
    files = set(folder.names())
    found: dict[str, Any] = {}
    for name in records.names():
        if name.endswith(".json"):
            record = json.loads(records.read(name))
            if record["file"] in files:
                found[name.removesuffix(".json")] = record
    return found


def check_output(folder: StorageDir, plan: PredictionPlan, *, restart: bool) -> None:
    """See that the plan can be carried out in the directory; nothing is written.

    Raises:
        ConfigurationError: the directory has something else, or another prediction.
        OSError: it cannot be read.
    """
    for file in plan.request.files:
        if type(folder).at(posixpath.dirname(file.path)).path == folder.path.rstrip("/"):
            raise ConfigurationError(
                f"OUTPUT must be another directory than that of INPUT; found {folder} for both."
            )
    if restart and folder.has(MANIFEST):
        return
    if (earlier := PredictionPlan.read(folder)) is not None:
        plan.check_continues(earlier, folder)
    elif others := sorted({*folder.names()} - {LEASE_DIR, RECORDS}):
        raise ConfigurationError(
            f"OUTPUT must be a new or an empty directory, or one with {MANIFEST}; found "
            f"{', '.join(others[:3])} in {folder}. Name another directory."
        )


def prepare_output(folder: StorageDir, plan: PredictionPlan, *, restart: bool) -> None:
    """Write the plan into the directory, as its owner; with `restart`, without what was there.

    Raises:
        ConfigurationError: as `check_output`.
        OSError: it cannot be written.
    """
    check_output(folder, plan, restart=restart)
    if restart and folder.has(MANIFEST):
        _clear(folder)
    for name in folder.names():
        if name.endswith(".part"):  # what a killed worker has left
            folder.remove(name)
    folder.write(MANIFEST, plan.to_json())


def _clear(folder: StorageDir) -> None:
    """Remove a prediction: its parts, those that have no record yet among them."""
    outputs = {record["file"] for record in complete_parts(folder).values()}
    with suppress(ConfigurationError):
        earlier = PredictionPlan.read(folder)
        names = [part.name for part in earlier.parts] if earlier is not None else []
        outputs |= {f"{name}.{ending}" for name in names for ending in ("npy", "npz", "csv")}
    for name in outputs:
        folder.remove(name)
    folder.remove(RECORDS)
    folder.remove(MANIFEST)
