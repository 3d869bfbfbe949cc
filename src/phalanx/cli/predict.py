"""`phalanx predict` and `phalanx evaluate`: a saved model on files, with several workers."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from phalanx.cli.console import error, info
from phalanx.cli.options_dataclass import takes
from phalanx.cli.run import start
from phalanx.cli.run_options import (
    DevicesPerWorker,
    HangTimeout,
    LogLevelOption,
    RunCommand,
    RunDir,
    RunName,
    TeeOption,
    ThreadsPerWorker,
)
from phalanx.errors import ConfigurationError
from phalanx.launcher.options import HANG_TIMEOUT, at_least, one_of
from phalanx.launcher.resources import Machine
from phalanx.launcher.run_dir import earlier_run
from phalanx.launcher.run_result import RunResult
from phalanx.launcher.script_check import check_module
from phalanx.launcher.shared_options import Env, EnvFrom, MaxRestarts, choice_option
from phalanx.lease.lease import LeaseTimes, acquire
from phalanx.lease.owner import this_process
from phalanx.lease.records import LEASE_DIR
from phalanx.prediction.input_files import find_files
from phalanx.prediction.plan import (
    EVALUATION,
    FORMATS,
    MANIFEST,
    MODULE,
    PARTS_PER_WORKER,
    ModelRequest,
    PredictionPlan,
    check_output,
    complete_parts,
    digest_of,
    prepare_output,
)

if TYPE_CHECKING:
    from phalanx.checkpoint.storage_dir import StorageDir
    from phalanx.prediction.plan import Format

PREDICT_HELP = """Predict the rows of files with a saved model, on several workers.

OUTPUT gets one file for each input file. The same command again predicts what is missing.

[bold]Examples[/bold]

  phalanx predict model.keras rows/ predictions --workers 4

  phalanx predict model.keras 'rows-*.csv' predictions --source inputs:rows --format csv

  phalanx predict model.keras photos/ predictions --workers 2 --map inputs:scale
"""
EVALUATE_HELP = """Evaluate a saved model on files, on several workers: the metrics of one device.

[bold]Examples[/bold]

  phalanx evaluate model.keras 'test-*.tfrecord' --workers 4

  phalanx evaluate model.keras test.npz --json
"""

_FUNCTION = "MODULE:FUNCTION"

MODEL_CONFIG = "config.json"
"""The member of a `.keras` file that describes the model."""


@dataclass(frozen=True, kw_only=True)
class ModelCommand:
    """What both commands take: each field is an option or an argument."""

    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The .keras file of the model.")]
    given: Annotated[
        str, typer.Argument(metavar="INPUT", help="A file, a directory, a pattern or a URL.")
    ]
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of workers.",
            show_default="one for each GPU of this machine, else 1",
        ),
    ] = None
    batch_size: Annotated[int, typer.Option(metavar="N", help="Rows of a batch.")] = 256
    source: Annotated[
        str | None,
        typer.Option(
            metavar=_FUNCTION,
            help="Function that makes a source of a list of paths, as phalanx.data.csv does.",
            show_default="by the kind of file",
        ),
    ] = None
    map: Annotated[
        str | None,
        typer.Option(
            metavar=_FUNCTION, help="Function of a sample, as map= of phalanx.data.pipeline."
        ),
    ] = None
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Module to import before the model is loaded, for its own classes (repeatable).",
        ),
    ] = None
    devices_per_worker: DevicesPerWorker = None
    threads_per_worker: ThreadsPerWorker = None
    max_restarts: MaxRestarts = 3
    name: RunName = None
    run_dir: RunDir = Path("runs")
    tee: TeeOption = "all"
    log_level: LogLevelOption = "auto"
    hang_timeout: HangTimeout = HANG_TIMEOUT
    env: Env = None
    env_from: EnvFrom = None

    def request(self, command: str) -> ModelRequest:
        """What the workers of `command` are requested.

        Raises:
            ConfigurationError: the model or the input is not there, or an option cannot work.
            ScriptError: there is no such module.
        """
        self._check_name(command)
        at_least("--batch-size", self.batch_size, 1)
        at_least("--workers", self.workers, 1)
        self.model_config()
        for option, name in (("--source", self.source), ("--map", self.map)):
            if name is not None and not all(name.partition(":")):
                raise ConfigurationError(f"{option} must be MODULE:FUNCTION; found {name!r}.")
        for name in (*(self.imports or ()), self.source, self.map):
            if name is not None:
                check_module(name.partition(":")[0], is_imported=True)
        return ModelRequest(
            model=str(self.model.absolute()),
            files=find_files(self.given, has_source=self.source is not None),
            batch_size=self.batch_size,
            source=self.source,
            map=self.map,
            imports=tuple(self.imports or ()),
        )

    def _check_name(self, command: str) -> None:
        """Refuse to take the record of another command's run for this one's."""
        if self.name is None or (before := earlier_run(self.run_dir / self.name)) is None:
            return
        options = before.get("options") or {}
        if options.get("target") != MODULE or (options.get("arguments") or [""])[0] != command:
            raise ConfigurationError(
                f"There is a run in {self.run_dir / self.name} already, of another command: "
                f"`{' '.join(before.get('argv') or ())}`. Give {command} another --name, or none."
            )

    def model_config(self) -> dict[str, Any]:
        """What Keras has saved of the model besides its weights.

        Raises:
            ConfigurationError: there is no such file, or it is not a model.
        """
        try:
            with zipfile.ZipFile(self.model) as archive:
                config = json.loads(archive.read(MODEL_CONFIG))
        except (OSError, zipfile.BadZipFile, KeyError, ValueError):
            config = None
        if not isinstance(config, dict):
            found = "no such file" if not self.model.exists() else "something else"
            raise ConfigurationError(
                f"MODEL must be a file that model.save('NAME.keras') has written; found {found} at "
                f"{str(self.model)!r}."
            )
        return config

    def run(
        self, command: str, place: str, *, workers: int | None, independent: bool, tee: str
    ) -> RunResult:
        """Start the workers and wait for their end."""
        words = [command, place]
        requested = RunCommand(
            target=MODULE,
            as_module=True,
            arguments=words,
            workers=None if workers is None else str(workers),
            devices_per_worker=self.devices_per_worker,
            threads_per_worker=self.threads_per_worker,
            max_restarts=self.max_restarts,
            name=self.name,
            resume=self.name is not None,
            run_dir=self.run_dir,
            tee=tee,
            log_level=self.log_level,
            hang_timeout=self.hang_timeout,
            env=self.env,
            env_from=self.env_from,
            cluster="none",
        )
        return start(requested, [*sys.argv, *words], independent=independent)


@dataclass(frozen=True, kw_only=True)
class PredictCommand(ModelCommand):
    """What `phalanx predict` takes."""

    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The directory to write to.")]
    format: Annotated[
        str,
        choice_option(FORMATS, help="npy writes .npy, or .npz for a model with several outputs."),
    ] = "npy"
    parts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Output files for each input file.",
            show_default="1; more if there are fewer files than workers",
        ),
    ] = None
    restart: Annotated[
        bool, typer.Option("--restart", help="Remove the predictions in OUTPUT and begin again.")
    ] = False

    def plan(self, earlier: PredictionPlan | None) -> PredictionPlan:
        """What is to be predicted.

        Args:
            earlier: the plan that is in OUTPUT, which decides what was left open here.

        Raises:
            ConfigurationError: see `request`; or the format does not exist.
        """
        at_least("--parts", self.parts, 1)
        one_of("--format", self.format, FORMATS)
        request = self.request("predict")
        workers = self.workers or max(1, len(Machine.here(os.environ).gpus))
        parts = self.parts or (earlier.parts_per_file if earlier is not None else None)
        if parts is None:
            files = len(request.files)
            parts = 1 if files >= workers else -(-PARTS_PER_WORKER * workers // files)
        return PredictionPlan(
            model_sha256=digest_of(request.model),
            request=request,
            format=cast("Format", self.format),
            parts_per_file=parts,
        )


@takes(PredictCommand)
def predict(requested: PredictCommand) -> None:
    """Predict what is missing, and leave with the run's exit code."""
    from phalanx.checkpoint.storage_dir import StorageDir

    folder = StorageDir.at(requested.output)
    with _writing_to(folder):
        plan = requested.plan(None if requested.restart else PredictionPlan.read(folder))
        check_output(folder, plan, restart=requested.restart)
    with _owned(folder):
        with _writing_to(folder):
            prepare_output(folder, plan, restart=requested.restart)
            done = complete_parts(folder)
        left = sum(part.name not in done for part in plan.parts)
        if done:
            info(f"{len(plan.parts) - left} of {len(plan.parts)} parts are complete in {folder}")
        code = 0
        if left:
            result = requested.run(
                "predict",
                requested.output,
                workers=None if requested.workers is None else min(requested.workers, left),
                independent=True,
                tee=requested.tee,
            )
            code = result.exit_code
            if result.report is not None:
                error(result.report)
        with _writing_to(folder):
            is_complete = _conclude(folder, plan)
    raise typer.Exit(code or (0 if is_complete else 1))


def _conclude(folder: StorageDir, plan: PredictionPlan) -> bool:
    """Say how far it is, and write the manifest of a prediction if that is complete."""
    done = complete_parts(folder)
    missing = [part.name for part in plan.parts if part.name not in done]
    if missing:
        error(
            f"{len(missing)} of {len(plan.parts)} parts are missing in {folder}, such as "
            f"{missing[0]}. The same command predicts them."
        )
        return False
    folder.write(MANIFEST, plan.to_json(done))
    rows = sum(record["rows"] for record in done.values())
    info(f"{rows} rows of {len(plan.request.files)} file(s) are in {folder}")
    return True


@contextmanager
def _writing_to(folder: StorageDir) -> Iterator[None]:
    """Say in one message that storage has failed."""
    try:
        yield
    except OSError as failure:
        raise ConfigurationError(
            f"Cannot write in OUTPUT {folder}: {failure.strerror or failure}. Name a directory "
            "where you can write."
        ) from failure


@contextmanager
def _owned(folder: StorageDir) -> Iterator[None]:
    """Be the one command that writes there.

    Raises:
        UnavailableError: another one does.
        ConfigurationError: it cannot be written.
    """
    with _writing_to(folder):
        lease = acquire(
            folder / LEASE_DIR,
            this_process(),
            what=f"the predictions in {folder}",
            advice="Wait for its end, or name another OUTPUT.",
            announce=info,
        )
    lease.keep_renewed(LeaseTimes())
    try:
        yield
    finally:
        lease.release()


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(ModelCommand):
    """What `phalanx evaluate` takes."""

    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the metrics, as JSON.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON alone.")] = False


@takes(EvaluateCommand)
def evaluate(requested: EvaluateCommand) -> None:
    """Evaluate, print the metrics, and leave with the run's exit code."""
    request = requested.request("evaluate")
    if requested.output is not None and not os.access(requested.output.absolute().parent, os.W_OK):
        raise ConfigurationError(
            f"Cannot write --output {requested.output}. Name a file in a directory where you can "
            "write."
        )
    if not requested.model_config().get("compile_config"):
        raise ConfigurationError(
            "evaluate needs a model that was compiled with its loss and metrics when it was saved; "
            f"found none in {str(requested.model)!r}. Load it, call model.compile(...) and "
            "model.save('NAME.keras'), and name that file."
        )
    with tempfile.TemporaryDirectory(prefix="phalanx-", ignore_cleanup_errors=True) as place:
        file = Path(place) / "request.json"
        file.write_text(json.dumps(asdict(request)))
        result = requested.run(
            "evaluate",
            str(file),
            workers=requested.workers,
            independent=False,
            tee="none" if requested.json else requested.tee,
        )
    if result.exit_code:
        if result.report is not None:
            error(result.report)
        raise typer.Exit(result.exit_code)
    text = (result.run_dir / EVALUATION).read_text()
    if requested.output is not None:
        requested.output.write_text(text)
    if requested.json:
        typer.echo(text.strip())
        return
    found = json.loads(text)
    for name, value in found["metrics"].items():
        typer.echo(f"{name}: {_in_words(value)}")
    info(f"{found['rows']} rows of {len(request.files)} file(s)")


def _in_words(value: float | list[Any] | None) -> str:
    """A metric as the terminal shows it; one with several values, such as F1Score, is a list."""
    if value is None:
        return "not finite"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_words, value))}]"
    return f"{value:.6g}"
