"""What every `phalanx submit` checks: a job may wait for hours, and should not end at once."""

from __future__ import annotations

from pathlib import Path

from phalanx.cli.run_options import RunCommand
from phalanx.cli.run_words import read_words
from phalanx.cluster.strategies import strategy_info
from phalanx.errors import ConfigurationError
from phalanx.launcher.options import RunOptions
from phalanx.launcher.resources import check_placement
from phalanx.submit.submit_spec import SubmitSpec


def check_run(run: SubmitSpec) -> RunOptions:
    """Read a run's words as its launchers will, and refuse what they would.

    Returns:
        What each launcher will be asked to do; where nothing says how many workers, one for each
        host, which is the fewest.

    Raises:
        ConfigurationError: an option of `--run-options` is wrong, or does not go with the others.
    """
    read = _read(run)
    options = read.options
    if read.hosts is not None or read.node_rank is not None or read.cluster != "auto":
        raise ConfigurationError(
            "--hosts, --node-rank and --cluster of a submitted run are what the cluster says; "
            f"found one in --run-options {run.shown_options!r}. Leave it out."
        )
    if (options.name, options.run_dir) != (run.name, Path(run.run_dir)):
        raise ConfigurationError(
            f"--name and --run-dir of a submitted run are those of phalanx submit; found others "
            f"in --run-options {run.shown_options!r}. Give them to phalanx submit."
        )
    if options.workers is not None:
        check_placement(options.workers, run.hosts)
    return options


def check_gpus_per_worker(gpus: float, options: RunOptions, more: str) -> None:
    """Refuse GPUs that a worker would reserve and leave idle.

    Args:
        gpus: of each worker.
        options: what each launcher will be asked to do.
        more: the words of `phalanx submit` that ask for so many workers with one GPU each.

    Raises:
        ConfigurationError: each worker uses one GPU, and would have more.
    """
    kind = strategy_info(options.strategy)
    if gpus <= 1 or (kind is not None and kind.multi_device):
        return
    raise ConfigurationError(
        f"--gpus-per-worker {gpus:g} under --strategy {options.strategy}, where a worker uses one "
        f"GPU. More GPUs are more workers: {more}."
    )


def _read(run: SubmitSpec) -> RunCommand:
    # What is no option at all is refused in there.
    read = read_words(run.words("--workers", str(run.hosts))[1:])
    if read is None or read.options.target != run.target:
        raise ConfigurationError(
            "--run-options must be options of phalanx run and nothing else; found "
            f"{run.shown_options!r}. What the script takes follows the script."
        )
    return read
