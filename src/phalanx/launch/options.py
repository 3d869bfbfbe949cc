"""What `phalanx run` is asked to do, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from phalanx.cluster.spec import STRATEGY_NAMES, DeviceSpec, StrategyName
from phalanx.errors import OptionError

TeeMode = Literal["all", "chief", "none"]
TEE_MODES: tuple[TeeMode, ...] = get_args(TeeMode)

MAX_SEED = 2**32 - 1
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DEVICES = re.compile(r"(?:(?P<kind>cpu|gpu):)?(?P<count>\d+)")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One `phalanx run`, as values.

    Attributes:
        target: the script's path, or the module's name when `as_module`.
        arguments: what the script finds in `sys.argv[1:]`.
        as_module: run `target` as `python -m` would.
        workers: how many workers; None means one for each GPU here, else one.
        strategy: how the workers train together.
        devices: the devices of each worker; None takes its share of what is there.
        seed: the seed of every worker; None lets the launcher draw one.
        max_restarts: how often a failed gang is started again.
        name: the run's name; None takes the time of day.
        run_dir: the directory that holds all runs.
        tee: whose output the terminal shows.
        threads: CPU threads for each worker; None shares the cores out.
        env: variables added to every worker's environment.

    Raises:
        OptionError: an option, or two of them together, cannot work.
    """

    target: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False
    workers: int | None = None
    strategy: StrategyName = "auto"
    devices: DeviceSpec | None = None
    seed: int | None = None
    max_restarts: int = 0
    name: str | None = None
    run_dir: Path = Path("runs")
    tee: TeeMode = "chief"
    threads: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _at_least("--workers", self.workers, 1)
        _at_least("--threads-per-worker", self.threads, 1)
        _one_of("--strategy", self.strategy, STRATEGY_NAMES)
        _one_of("--tee", self.tee, TEE_MODES)
        if self.max_restarts != 0:
            raise OptionError(
                f"--max-restarts {self.max_restarts}: this version does not restart a failed run "
                "yet; leave the option out, or give 0."
            )
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise OptionError(f"--seed must be 0 to {MAX_SEED}; found {self.seed}.")
        if self.name is not None and not _RUN_NAME.fullmatch(self.name):
            raise OptionError(
                f"--name must be letters, digits, '.', '_' and '-', a letter or digit first; "
                f"found {self.name!r}."
            )
        if self.workers is not None:
            check_workers_fit(self.workers, self.strategy, self.devices)


def check_workers_fit(workers: int, strategy: StrategyName, devices: DeviceSpec | None) -> None:
    """Refuse a number of workers that the strategy or the devices do not allow.

    Raises:
        OptionError: says which option to change, and to what.
    """
    if workers > 1 and strategy in ("single", "mirrored"):
        several = "one device" if strategy == "single" else "the devices of one process"
        raise OptionError(
            f"--strategy {strategy} trains on {several}, but there are {workers} workers. "
            "Use --workers 1, or --strategy multiworker to train on all of them."
        )
    if devices is None or devices.count == 1:
        return
    if workers > 1 and devices.kind == "cpu":
        raise OptionError(
            f"--devices-per-worker cpu:{devices.count} with {workers} workers: TensorFlow's "
            "multi-worker strategy uses one CPU device in each worker. Use cpu:1 with more "
            "--workers, or --workers 1 with --strategy mirrored."
        )
    if strategy == "single":
        raise OptionError(
            f"--strategy single trains on one device; found --devices-per-worker with "
            f"{devices.count}. Leave it out, or use --strategy mirrored."
        )


def parse_devices(text: str) -> DeviceSpec:
    """`2`, `cpu:2` or `gpu:1` as a value.

    Raises:
        OptionError: the text is none of these.
    """
    match = _DEVICES.fullmatch(text.strip().lower())
    if match is None or int(match["count"]) < 1:
        raise OptionError(
            f"--devices-per-worker must be a number of at least 1, such as 2, cpu:2 or gpu:1; "
            f"found {text!r}."
        )
    kind: Literal["auto", "cpu", "gpu"] = "auto"
    if match["kind"] == "cpu":
        kind = "cpu"
    elif match["kind"] == "gpu":
        kind = "gpu"
    return DeviceSpec(count=int(match["count"]), kind=kind)


def parse_env(items: list[str]) -> dict[str, str]:
    """`["A=1", "B=x=y"]` as a mapping.

    Raises:
        OptionError: an item has no name or no `=`.
    """
    env: dict[str, str] = {}
    for item in items:
        match = _VARIABLE.fullmatch(item)
        if match is None:
            raise OptionError(f"--env must be NAME=VALUE; found {item!r}.")
        env[match["name"]] = match["value"]
    return env


def _at_least(option: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise OptionError(f"{option} must be at least {least}; found {value}.")


def _one_of(option: str, value: str, names: tuple[str, ...]) -> None:
    if value not in names:
        raise OptionError(f"{option} must be one of {', '.join(names)}; found {value!r}.")
