"""What `phalanx debug replay` starts, in a process of its own: find a kept step and run it again.

Arguments: `RUN NAME FORM [SCRIPT ARGS...]`; NAME is that of a kept step, or empty for the first;
FORM is "text" or "json".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import keras

from phalanx.checkpoint.step_capture import (
    CaptureInfo,
    StepCapture,
    captures_in,
    read_captured,
    step_of,
)
from phalanx.diagnostics.debug.nonfinite_rows import Range
from phalanx.diagnostics.debug.replay import Replay, ReplayResult, Sample
from phalanx.diagnostics.doctor.fit_capture import first_fit
from phalanx.errors import ConfigurationError, PhalanxError
from phalanx.worker.run_script import Target

SCHEMA = 1


def chosen(run: Path, name: str) -> list[Path]:
    """The directory of the kept step `name` of a run, or those of its first step, of each worker.

    Raises:
        ConfigurationError: there is none.
    """
    kept = captures_in(run)
    found = [path for path in kept if name in ("", path.name)]
    if not found:
        there = ", ".join(path.name for path in kept) or "none"
        raise ConfigurationError(
            f"{run} holds no kept step{f' named {name!r}' * bool(name)}; found {there}. A step is "
            "kept when a loss or gradient stops being finite under phalanx run, unless that is "
            "ignored."
        )
    return [path for path in found if step_of(path) == step_of(found[0])]


def replay_until_bad(
    model: Any, captures: Iterable[CaptureInfo]
) -> list[tuple[StepCapture, ReplayResult]]:
    """Replay what workers kept of one step, up to what goes wrong.

    A worker whose samples are finite has kept them too where those of another have reached it, as
    through a BatchNormalization.

    Args:
        model: as it was captured.
        captures: the batch and weights of each; one is read when it is needed.

    Returns:
        What was replayed, and what was found of each; the last went wrong, if any did.
    """
    results = []
    for captured in captures:
        found = Replay(model, captured).run()
        results.append((captured.about, found))
        if found.phase:
            break
    return results


def main(arguments: list[str]) -> int:
    """Replay one step and print what was found; 1 where it was finite this time, else 0."""
    run, name, form, *script = arguments
    try:
        directories = chosen(Path(run), name)
        first = _read(directories[0])
        model = model_of_script(script[0], script[1:]) if script else model_of(first)
        results = replay_until_bad(model, chain([first], map(_read, directories[1:])))
    except PhalanxError as error:
        print(f"phalanx: {error}", file=sys.stderr)
        return 2
    place = len(results) - 1 if results[-1][1].phase else 0
    about, found = results[place]
    if form == "json":
        document = {"schema": SCHEMA, "step": asdict(about), "found": asdict(found)}
        print(json.dumps(document, indent=2))
    else:
        for before, _ in results[:place]:
            print(f"worker {before.rank}: its samples are finite without those of the others")
        print("\n".join([str(directories[place]), *in_words(found, about)]))
        print("\n".join(["largest absolute value after each layer:", *format_growth(found.growth)]))
    return 0 if found.phase else 1


def _read(directory: Path) -> CaptureInfo:
    try:
        return read_captured(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"The kept step in {directory} cannot be read: {error}."
        ) from error


_MOST_SAMPLES = 8


def in_words(found: ReplayResult, about: StepCapture) -> list[str]:
    """Lines for people: what was run, where it went wrong, and what to do."""
    part = found.part
    whose = f"worker {about.rank}"
    if len(about.parts) > 1:
        whose += f", replica {part.replica}"
    lines = [
        f"step {about.step}: {part.count} of the {about.total} samples of the global batch, those "
        f"of {whose}"
    ]
    if not found.phase:
        return [*lines, _not_again(about, found)]
    lines.append(f"first wrong: {_where(found)}")
    lines += [f"  was given: {_range(given)}" for given in found.given]
    if found.variable:
        of = "" if found.phase == "weights" else "the gradient of "
        lines.append(f"variable: {of}{found.variable}")
    lines.append(f"samples: {_samples(found.samples)}")
    if found.cause is not None:
        lines += [f"cause: {found.cause.summary}", f"remedy: {found.cause.remedy}"]
    return lines


def format_growth(growth: Sequence[tuple[str, float]]) -> list[str]:
    """A line for each layer: its name and the largest absolute value that it gave."""
    width = max((len(name) for name, _ in growth), default=0)
    return [f"  {name:<{width}}  {largest:.4g}" for name, largest in growth]


def _where(found: ReplayResult) -> str:
    operation = f", operation {found.operation} in {found.dtype}" if found.operation else ""
    if found.phase == "data":
        return f"the data{f'; it shows in {found.layer}' if found.layer else ''}"
    if found.phase == "weights":
        return f"the weights{f'; it shows in {found.layer}' if found.layer else ''}"
    layer = found.layer or "the loss's gradient"
    return f"{layer}, {found.phase} pass{operation}"


def _range(given: Range) -> str:
    summary = f"{given.size} numbers from {given.least:.6g} to {given.greatest:.6g}"
    return f"{summary}, {given.nonfinite} not finite" if given.nonfinite else summary


def _samples(samples: Sequence[Sample]) -> str:
    if not samples:
        return "none on its own, only all together"
    shown = [_sample(each) for each in samples[:_MOST_SAMPLES]]
    rest = len(samples) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")


def _sample(sample: Sample) -> str:
    summary = f"{sample.in_batch} of the global batch"
    if sample.place:
        return f"{summary} ({sample.place})"
    return f"{summary} (sample {sample.row} of the data)" if sample.row is not None else summary


def _not_again(about: StepCapture, found: ReplayResult) -> str:
    largest = max((value for _, value in found.growth), default=0.0)
    if not any(part.is_bad for part in about.parts):
        return (
            "all is finite here, as it was on each worker: only the sum over the replicas was not. "
            f"The largest activation is {largest:.4g}. Lower the learning rate, or clip with "
            "phalanx.clip before the sum."
        )
    others = len(about.parts) < about.replicas
    return (
        f"all is finite this time; the largest activation is {largest:.4g}. What differs here: "
        "eager operations in place of compiled ones, this machine's processor, chance that is no "
        f"keras.random seed{', the rows of other workers in a BatchNormalization' * others}."
    )


_BY_SCRIPT = (
    "Name the script: phalanx debug replay RUN --script train.py runs it up to its first fit and "
    "takes the model from there."
)


def model_of(captured: CaptureInfo) -> Any:
    """The model, built again from its configuration.

    Raises:
        ConfigurationError: it was not written down, or needs a class of the script's.
    """
    if captured.config is None:
        raise ConfigurationError(
            f"The kept step holds no model, which could not be written down ({captured.about.model}"
            f"). {_BY_SCRIPT}"
        )
    try:
        model = keras.saving.deserialize_keras_object(dict(captured.config))
    except Exception as error:  # of whatever a class of the user's raises
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ConfigurationError(
            f"The kept step's model cannot be built from its configuration alone ("
            f"{type(error).__name__}: {first}). {_BY_SCRIPT} Or give classes of your own "
            "@keras.saving.register_keras_serializable() and a get_config, in a module that "
            "is imported."
        ) from error
    if getattr(model, "optimizer", None) is None:
        raise ConfigurationError(f"The kept step's model is not compiled. {_BY_SCRIPT}")
    return model


def model_of_script(script: str, arguments: list[str]) -> Any:
    """The model that a script is about to train, taken where it calls `fit`.

    Raises:
        ConfigurationError: it calls none.
    """
    found = first_fit(Target(name=script, as_module=False, arguments=tuple(arguments)))
    if found is None:
        raise ConfigurationError(
            f"{script} calls no fit, so there is no model to take. Name the script."
        )
    return found.model


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
