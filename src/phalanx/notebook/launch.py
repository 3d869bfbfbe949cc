"""`phalanx.launch`: a function, or a script, on workers, from a notebook."""

from __future__ import annotations

import difflib
import inspect
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints, overload

from phalanx.cli.run_options import RunCommand
from phalanx.cluster.spec import WORKER_VARIABLE
from phalanx.errors import ConfigurationError, ReturnValueError
from phalanx.launcher.run_result import RunResult
from phalanx.notebook.cell_output import CellOutput
from phalanx.notebook.failure import raise_failure
from phalanx.notebook.kernel_process import run_launcher
from phalanx.notebook.launcher import LauncherRequest
from phalanx.notebook.pickled_call import pickle_function
from phalanx.worker.notebook_call import MODULE, NotebookCall, NotebookResult, classes_of, register

T = TypeVar("T")

_NOT_HERE = frozenset(
    ("target", "arguments", "hosts", "node_rank", "cluster", "rendezvous_timeout", "debug_rank")
)
"""Fields of `RunCommand` that are no options here: a kernel is on one host, and no terminal."""


@overload
def launch(
    target: Callable[..., T],
    /,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    **options: Any,
) -> T: ...
@overload
def launch(
    target: str | os.PathLike[str],
    /,
    *,
    args: Sequence[Any] = (),
    workers: int | str | None = None,
    **options: Any,
) -> None: ...
def launch(
    target: Any,
    /,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    **options: Any,
) -> Any:
    """Run a function or a script on several workers, and wait for the end.

    The workers are new processes, so it does not matter what this process has imported or
    allocated. It is a run as that of `phalanx run`, with a run directory, restarts and detection of
    hangs. An interrupt ends the workers.

    Args:
        target: a function, which may be defined in a cell, or the path of a script. The function
            and what it uses are copied to each worker with `cloudpickle`.
        args: the arguments of the function, or the words that the script finds in `sys.argv[1:]`.
        kwargs: the keyword arguments of the function.
        workers: the number of workers, or "MIN:MAX"; None for one for each GPU, else 1.
        options: the options of `phalanx run`, with `_` for `-`: `max_restarts=2`, `name="mnist"`.
            `env` is a mapping.

    Returns:
        What the function returned on the chief. A `keras.callbacks.History` comes back without its
        model, as an object with `history`, `epoch` and `params`. None for a script.

    Raises:
        ConfigurationError: an option is wrong, or something that the function uses cannot be sent.
        ScriptError: the script cannot be run.
        RunFailedError: a worker failed; names the worker, the file and the line.
        ReturnValueError: the function has ended well, but its value cannot come back.
    """
    with tempfile.TemporaryDirectory(prefix="phalanx-", ignore_cleanup_errors=True) as place:
        result = Path(place) / "result.pkl"
        if callable(target):
            if "as_module" in options:
                raise ConfigurationError(
                    f"as_module is for the name of a module; found the function {target!r}. Leave "
                    "it out."
                )
            call = pickle_function(target, args, kwargs or {})
            words = send(call, Path(place), result)
            command = run_command(MODULE, words, as_module=True, workers=workers, **options)
            name = getattr(target, "__name__", None) or type(target).__name__
        else:
            if kwargs:
                raise ConfigurationError(
                    f"kwargs are for a function; found them with the script {os.fspath(target)!r}. "
                    "Give the words of its command line as args."
                )
            words = [str(word) for word in args]
            command = run_command(os.fspath(target), words, workers=workers, **options)
            name = os.fspath(target)
        outcome = run(command, f"phalanx.launch({name})", Path(place))
        return read_result(result, outcome) if callable(target) else None


def send(call: NotebookCall, place: Path, result: Path) -> list[str]:
    """Write a call for the workers.

    Returns:
        The arguments of the module that they run.
    """
    path = place / "call.pkl"
    path.write_bytes(pickle.dumps(call))
    return [str(path), str(result)]


def run(command: RunCommand, shown: str, place: Path) -> RunResult:
    """Run the command and show it in the cell.

    Args:
        command: what to run.
        shown: what the run records as its command.
        place: a directory for files of this run.

    Raises:
        PhalanxError: the run has failed, or there was none.
    """
    if WORKER_VARIABLE in os.environ:
        raise ConfigurationError(
            "phalanx.launch starts workers; found it in a worker. Call it in the notebook, or in a "
            "script that python runs, and not under phalanx run."
        )
    options = command.options  # Refuses what cannot work.
    words = tuple(options.arguments)
    request = LauncherRequest(
        command=command,
        argv=(shown, *words),
        outcome=place / "outcome.pkl",
    )
    outcome = run_launcher(request, CellOutput(sys.stdout))
    if outcome.error is not None:
        raise outcome.error from None
    assert outcome.result is not None
    if outcome.result.exit_code:
        raise_failure(outcome.result)
    return outcome.result


def run_command(target: str, arguments: Sequence[str], /, **options: Any) -> RunCommand:
    """The options of `phalanx run`, as they are written in Python.

    Raises:
        ConfigurationError: there is no such option.
    """
    known = [field.name for field in fields(RunCommand) if field.name not in _NOT_HERE]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known
            raise ConfigurationError(
                f"phalanx.launch has no option {name!r}. Options are those of phalanx run on one "
                f"host; near it: {', '.join(near)}."
            )
    if (workers := options.get("workers")) is not None:
        options["workers"] = str(workers)
    if isinstance(env := options.get("env"), Mapping):
        options["env"] = [f"{name}={value}" for name, value in env.items()]
    if (devices := options.get("devices_per_worker")) is not None:
        options["devices_per_worker"] = str(devices)
    if (run_dir := options.get("run_dir")) is not None:
        options["run_dir"] = Path(run_dir)
    return RunCommand(target=target, arguments=list(arguments), cluster="none", **options)


def read_result(path: Path, outcome: RunResult) -> Any:
    """What the function returned on the chief.

    Raises:
        ReturnValueError: it cannot come back.
    """
    try:
        result: NotebookResult = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        raise ReturnValueError(
            "The function has not returned: the script has ended by sys.exit or os._exit. The run "
            f"is in {outcome.run_dir}. Let the function return."
        ) from None
    if result.pickled is None:
        raise ReturnValueError(
            f"The function returned a {result.type}, which cannot be sent to this process "
            f"({result.error}). Return what it is made from, such as arrays, weights or a saved "
            f"file's path. The training has ended well: the run is in {outcome.run_dir}."
        )
    try:
        register(result.registered)
        place = classes_of(sys.modules["__main__"], has_keras=result.has_keras)
        with place, _growing_gpu_memory(os.environ):
            return pickle.loads(result.pickled)
    except Exception as error:  # Any type may raise anything.
        raise ReturnValueError(
            f"The function returned a {result.type}, which cannot be loaded in this process "
            f"({type(error).__name__}: {error}). Return what it is made from, such as arrays, "
            "weights or a saved file's path; define custom layers in a cell of the notebook. The "
            f"training has ended well: the run is in {outcome.run_dir}."
        ) from error


@contextmanager
def _growing_gpu_memory(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Where TensorFlow starts in here, for a returned model, it takes the memory that it needs.

    By default it takes all memory of every GPU, and the workers of the next run would have none.
    https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth
    """
    name = "TF_FORCE_GPU_ALLOW_GROWTH"
    if name in environment:
        yield
        return
    environment[name] = "true"
    try:
        yield
    finally:
        del environment[name]


def _signature() -> inspect.Signature:
    """That of `launch` with the options of `phalanx run`, for completion in a notebook."""
    hints = get_type_hints(RunCommand)
    own = [
        each
        for each in inspect.signature(launch).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    names = {each.name for each in own}
    options = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=hints[each.name],
        )
        for each in inspect.signature(RunCommand).parameters.values()
        if each.name not in names and each.name not in _NOT_HERE
    ]
    return inspect.Signature([*own, *options])


vars(launch)["__signature__"] = _signature()
