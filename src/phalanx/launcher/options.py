"""What `phalanx run` is asked to do, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from phalanx.cluster.debug_options import DebugOptions
from phalanx.cluster.reduce_options import ReduceOptions, check_reduce_options
from phalanx.cluster.spec import LOG_LEVELS, DeviceSpec, LogLevel
from phalanx.cluster.strategies import (
    STRATEGY_NAMES,
    StrategyName,
    check_communication,
    strategy_info,
    uses_parameter_servers,
)
from phalanx.cluster.sync_options import SyncOptions
from phalanx.cluster.task_types import DEFAULT_SHARDING, parse_sharding
from phalanx.errors import ConfigurationError
from phalanx.launcher.trackers import parse_trackers

TeeMode = Literal["all", "chief", "none"]
TEE_MODES: tuple[TeeMode, ...] = get_args(TeeMode)

MAX_SEED = 2**32 - 1
HANG_TIMEOUT = 1800.0
STARTUP_TIMEOUT = 300.0
GRACE = 60.0
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One `phalanx run`, as values.

    Attributes:
        target: the script's path, or the module's name when `as_module`.
        arguments: what the script finds in `sys.argv[1:]`.
        as_module: run `target` as `python -m` would.
        workers: how many workers; None means one for each GPU here, else one. Where
            `devices` asks for several, it means one.
        min_workers: continue with fewer, at least so many, where a worker cannot restart; None
            for never.
        strategy: how the workers train together.
        communication_backend: how replicas add up, by name; "auto" leaves it to the strategy.
        reduction: in which pieces and in which dtype gradients travel.
        servers: how many parameter servers; None means one where the strategy has them.
        sharding: how the servers share big variables: min-size:BYTES, fixed-shards:N or none.
        data_workers: processes that read and map data for the workers; 0 for none.
        devices: the devices of each worker; None takes its share of what is there.
        seed: the seed of every worker; None lets the launcher draw one.
        max_restarts: how often a failed worker group is restarted.
        name: the run's name; None takes the time of day.
        run_dir: the directory that holds all runs.
        tee: whose output the terminal shows.
        log_level: what the workers' `logging` says.
        hang_timeout: seconds after which a run that makes no progress is ended; 0 for never.
        grace_period: seconds that training has to save and stop after SIGTERM or SIGUSR1.
        rendezvous_timeout: seconds to wait for the launchers of other hosts.
        resume: continue with the run of that name, however it ended.
        threads: CPU threads for each worker; None shares the cores out.
        switches: what is done so that mistakes are found.
        sync: how often workers synchronize their weights.
        sync_batchnorm: whether BatchNormalization has the mean and variance of the global batch.
        env: variables added to every worker's environment.
        trackers: the experiment trackers that get the run, by name.
        tracker_project: the project or experiment in them; None for each tracker's default.
        tracker_artifacts: send the model file that was saved last, too.
        independent: whether the workers exchange nothing; one that fails is replaced alone.

    Raises:
        ConfigurationError: an option, or two of them together, cannot work.
    """

    target: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False
    workers: int | None = None
    min_workers: int | None = None
    strategy: StrategyName = "auto"
    communication_backend: str = "auto"
    reduction: ReduceOptions = field(default_factory=ReduceOptions)
    servers: int | None = None
    sharding: str = DEFAULT_SHARDING
    data_workers: int = 0
    devices: DeviceSpec | None = None
    seed: int | None = None
    max_restarts: int = 0
    name: str | None = None
    run_dir: Path = Path("runs")
    tee: TeeMode = "chief"
    log_level: LogLevel = "auto"
    hang_timeout: float = HANG_TIMEOUT
    grace_period: float = GRACE
    rendezvous_timeout: float = STARTUP_TIMEOUT
    resume: bool = False
    threads: int | None = None
    switches: DebugOptions = field(default_factory=DebugOptions)
    sync: SyncOptions = field(default_factory=SyncOptions)
    sync_batchnorm: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    trackers: tuple[str, ...] = ()
    tracker_project: str | None = None
    tracker_artifacts: bool = False
    independent: bool = False

    def __post_init__(self) -> None:
        at_least("--workers", self.workers, 1)
        at_least("--data-workers", self.data_workers, 0)
        at_least("--threads-per-worker", self.threads, 1)
        one_of("--strategy", self.strategy, STRATEGY_NAMES)
        check_communication(self.communication_backend, self.strategy)
        check_reduce_options(self.reduction, self.strategy)
        check_servers(self.servers, self.sharding, self.strategy)
        one_of("--tee", self.tee, TEE_MODES)
        one_of("--log-level", self.log_level, LOG_LEVELS)
        if not self.hang_timeout >= 0:
            raise ConfigurationError(
                f"--hang-timeout must be seconds, or 0 for never; found {self.hang_timeout}."
            )
        if not self.grace_period >= 0:
            raise ConfigurationError(
                f"--grace-period must be 0 or more seconds; found {self.grace_period}."
            )
        if not self.rendezvous_timeout > 0:
            raise ConfigurationError(
                "--rendezvous-timeout must be seconds, more than 0; found "
                f"{self.rendezvous_timeout}."
            )
        if self.resume and self.name is None:
            raise ConfigurationError("--resume continues with a run: give its --name.")
        at_least("--max-restarts", self.max_restarts, 0)
        if self.min_workers is not None:
            _check_elastic(self)
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ConfigurationError(f"--seed must be 0 to {MAX_SEED}; found {self.seed}.")
        if self.name is not None and not _RUN_NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"--name must be letters, digits, '.', '_' and '-', a letter or digit first; "
                f"found {self.name!r}."
            )
        check_workers_fit(self.workers, self.strategy, self.devices)
        _check_switches(self)
        parse_trackers(self.trackers)
        if not self.trackers and (self.tracker_project is not None or self.tracker_artifacts):
            option = "--tracker-project" if self.tracker_project else "--tracker-artifacts"
            raise ConfigurationError(f"{option} is for a --tracker: give its name as well.")
        self.sync.check_strategy(self.strategy, 1 if self.devices is None else self.devices.count)


def check_servers(servers: int | None, sharding: str, strategy: StrategyName) -> None:
    """Refuse parameter servers where the strategy has none.

    Raises:
        ConfigurationError: says which option to change.
    """
    at_least("--ps", servers, 1)
    parse_sharding(sharding)
    if not uses_parameter_servers(strategy) and (
        servers is not None or sharding != DEFAULT_SHARDING
    ):
        option = "--ps" if servers is not None else "--variable-partitioner"
        raise ConfigurationError(
            f"{option} is for --strategy parameter-server; found --strategy {strategy}. Leave it "
            "out, or choose that strategy."
        )


def _check_elastic(options: RunOptions) -> None:
    requested = f"--workers {options.min_workers}:{options.workers}"
    if options.workers is None or not 1 <= (options.min_workers or 0) <= options.workers:
        raise ConfigurationError(f"{requested}: MIN must be at least 1 and at most MAX.")
    if options.max_restarts == 0:
        raise ConfigurationError(
            f"{requested} continues with fewer workers by restarting: give --max-restarts as well."
        )
    if uses_parameter_servers(options.strategy):
        raise ConfigurationError(
            f"{requested} is for workers that train in step. Under --strategy parameter-server a "
            "worker that fails is replaced: give --workers one number."
        )


def _check_switches(options: RunOptions) -> None:
    switches = options.switches
    at_least("--debug-rank", switches.debug_rank, 0)
    if switches.debug_rank and not switches.debug:
        raise ConfigurationError(
            f"--debug-rank {switches.debug_rank} gives a worker the terminal of --debug: give "
            "that as well."
        )
    if switches.trial_batches and (options.name is not None or options.resume):
        raise ConfigurationError(
            "--fast-dev-run keeps nothing of its run: leave out --name and --resume."
        )
    if switches.trial_batches and (switches.overfit_batches or switches.profile):
        other = "--overfit-batches" if switches.overfit_batches else "--profile"
        raise ConfigurationError(
            f"--fast-dev-run trains on few batches and keeps nothing; found {other} as well. "
            "Leave one of them out."
        )
    if uses_parameter_servers(options.strategy):
        for option, value in (
            ("--debug", switches.debug),
            ("--overfit-batches", switches.overfit_batches),
            ("--profile", switches.profile),
        ):
            if value:
                raise ConfigurationError(
                    f"{option} is for workers that train in step; found --strategy "
                    "parameter-server. Leave it out, or choose another strategy."
                )


def check_workers_fit(
    workers: int | None, strategy: StrategyName, devices: DeviceSpec | None
) -> None:
    """Refuse a number of workers that the strategy or the devices do not allow.

    Args:
        workers: how many; None where that is not decided yet.
        strategy: how they train together.
        devices: of each worker.

    Raises:
        ConfigurationError: says which option to change, and to what.
    """
    kind = strategy_info(strategy)
    several_workers = workers is not None and workers > 1
    if several_workers and kind is not None and not kind.multi_worker:
        raise ConfigurationError(
            f"--strategy {strategy} trains on {kind.description}, but there are {workers} workers. "
            "Use --workers 1, or --strategy multiworker to train on all of them."
        )
    if devices is None or devices.count == 1:
        return
    requested = f"--devices-per-worker {_spelt(devices)}"
    if kind is not None and not kind.multi_device:
        raise ConfigurationError(
            f"--strategy {strategy} trains on {kind.description}; found {requested}. "
            f"{_instead(workers, strategy, devices, kind.multi_worker)}"
        )
    if several_workers:
        raise ConfigurationError(
            f"{requested} with {workers} workers: each of several workers has one device. "
            f"{_instead(workers, strategy, devices, True)}"
        )


def _instead(
    workers: int | None, strategy: StrategyName, devices: DeviceSpec, many_workers: bool
) -> str:
    """The command that trains on as many devices as were asked for."""
    one_process = f"phalanx run --strategy mirrored --devices-per-worker {_spelt(devices)} SCRIPT"
    if not many_workers:
        return f"Leave it out, or use: {one_process}."
    named = "" if strategy in ("auto", "multiworker") else f" --strategy {strategy}"
    more = f"phalanx run{named} --workers {devices.count * (workers or 1)} SCRIPT"
    return f"More devices are more workers: {more}. In one process: {one_process}."


def _spelt(devices: DeviceSpec) -> str:
    """As `--devices-per-worker` takes it."""
    return f"{devices.count}" if devices.kind == "auto" else f"{devices.kind}:{devices.count}"


def at_least(option: str, value: int | None, least: int) -> None:
    """See that an option is not below its least value; None is not given."""
    if value is not None and value < least:
        raise ConfigurationError(f"{option} must be at least {least}; found {value}.")


def one_of(option: str, value: str, names: tuple[str, ...]) -> None:
    """See that an option is one of the names it may have."""
    if value not in names:
        raise ConfigurationError(f"{option} must be one of {', '.join(names)}; found {value!r}.")


_WORKERS = re.compile(r"(?:(?P<least>\d+):)?(?P<most>\d+)")
_DEVICES = re.compile(r"(?:(?P<kind>cpu|gpu|logical-gpu):)?(?P<count>\d+)")
_ENV = "--env"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_workers(text: str) -> tuple[int | None, int]:
    """`3` as (None, 3), and `2:3`, the fewest and the most, as (2, 3).

    Raises:
        ConfigurationError: the text is neither.
    """
    match = _WORKERS.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"--workers must be a number, or MIN:MAX such as 2:4; found {text!r}."
        )
    least = match["least"]
    return (None if least is None else int(least)), int(match["most"])


def parse_devices(text: str) -> DeviceSpec:
    """`2`, `cpu:2` or `gpu:1` as a value.

    Raises:
        ConfigurationError: the text is none of these.
    """
    match = _DEVICES.fullmatch(text.strip().lower())
    if match is None or int(match["count"]) < 1:
        raise ConfigurationError(
            f"--devices-per-worker must be a number of at least 1, such as 2, cpu:2 or gpu:1; "
            f"found {text!r}."
        )
    return DeviceSpec(count=int(match["count"]), kind=match["kind"] or "auto")  # type: ignore[arg-type]


def is_variable_name(name: str) -> bool:
    """Whether an environment variable can have this name."""
    return _VARIABLE_NAME.fullmatch(name) is not None


def parse_env(items: list[str]) -> dict[str, str]:
    """`["A=1", "B=x=y"]` as a mapping.

    Raises:
        ConfigurationError: an item has no name or no `=`.
    """
    env: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not is_variable_name(name):
            # What follows the "=" may be a secret, and so may an item without one.
            found = f"the name {name!r}" if equals else "an item without '='"
            raise ConfigurationError(f"--env must be NAME=VALUE; found {found}.")
        env[name] = value
    return env


def without_env_values(words: Sequence[str]) -> list[str]:
    """Options of `phalanx run` as they may be written down: of each `--env` the name alone.

    The value may be a key or a password.
    """
    return [
        word.partition("=")[0]
        if before == _ENV
        else f"{_ENV}={word.removeprefix(f'{_ENV}=').partition('=')[0]}"
        if word.startswith(f"{_ENV}=")
        else word
        for before, word in pairwise(["", *words])
    ]


def split_env(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Options of `phalanx run` as the variables of every `--env`, and all other words.

    Raises:
        ConfigurationError: an `--env` is not NAME=VALUE.
    """
    env: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == _ENV and rest:
            env.append(rest.pop(0))
        elif word.startswith(f"{_ENV}="):
            env.append(word.removeprefix(f"{_ENV}="))
        else:
            others.append(word)
    return parse_env(env), tuple(others)
