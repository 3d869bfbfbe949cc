"""The configuration of a run, flat, as trackers show and compare it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.launcher.run_dir import earlier_run
from phalanx.report.run_data import read_run_file
from phalanx.trackers.protocol import RunInfo, Value


def run_info(run_dir: Path, key: str, tracker_id: str | None, project: str | None) -> RunInfo:
    """What a tracker gets about the run in this directory."""
    git = (earlier_run(run_dir) or {}).get("git")
    commit = git.get("commit") if isinstance(git, Mapping) else None
    return RunInfo(
        key=key,
        tracker_id=tracker_id,
        name=run_dir.resolve().name,
        directory=run_dir.resolve(),
        project=project,
        config=run_config(run_dir),
        git_commit=commit if isinstance(commit, str) else None,
    )


def run_config(run_dir: Path) -> dict[str, Value]:
    """Options, arguments of the script, seed, versions, machine and commit, by name.

    `run.json` holds no values of environment variables, and `***` in place of secrets.
    """
    file = read_run_file(run_dir)
    options = dict(file.options)
    arguments = options.pop("arguments", None) or ()
    found = {"command": " ".join(file.argv), **script_arguments(arguments)}
    found |= _flat("options", options)
    found |= _flat("versions", file.versions)
    found |= _flat("machine", file.machine)
    if file.seed is not None:
        found["seed"] = file.seed
    if file.git is not None:
        found["git_commit"] = file.git
    return found


def script_arguments(words: Sequence[str]) -> dict[str, Value]:
    """`["--lr", "0.1", "--fast", "data"]` by name: `args/lr`, `args/fast`, `args/0`.

    The name of an argument that follows no option is its place among those.
    """
    found: dict[str, Value] = {}
    place = 0
    rest = list(words)
    has_options = True
    while rest:
        word = rest.pop(0)
        if word == "--" and has_options:
            has_options = False  # what follows are no options, as argparse reads it
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not has_options or not word.startswith("-") or not name or _is_number(word):
            found[f"args/{place}"] = _parsed(word)
            place += 1
            continue
        if not equals and rest and (not rest[0].startswith("-") or _is_number(rest[0])):
            value, equals = rest.pop(0), "="
        found[f"args/{name}"] = _parsed(value) if equals else True
    return found


def _is_number(word: str) -> bool:
    return isinstance(_parsed(word), (int, float))


def _parsed(word: str) -> Value:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _flat(name: str, value: Any) -> dict[str, Value]:
    if isinstance(value, Mapping):
        parts = [_flat(f"{name}/{key}", each) for key, each in value.items()]
        return {key: each for part in parts for key, each in part.items()}
    if value is None:
        return {}
    if isinstance(value, (str, int, float, bool)):
        return {name: value}
    return {name: json.dumps(value, default=str)}
