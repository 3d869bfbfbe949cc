"""`phalanx checkpoint`: see, verify and prune the checkpoints of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from phalanx.cli.console import error, info

if TYPE_CHECKING:
    from phalanx.checkpoint.manifest import Manifest

HELP = """List, verify and prune the checkpoints in a directory.

DIR is a path, or a URL such as s3://bucket/run (which needs s3fs).

[bold]Examples[/bold]

  phalanx checkpoint list runs/mnist/checkpoints

  phalanx checkpoint verify runs/mnist/checkpoints

  phalanx checkpoint prune runs/mnist/checkpoints --max-to-keep 2
"""

Directory = Annotated[str, typer.Argument(metavar="DIR", help="Directory of the checkpoints.")]

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")


@app.command("list")
def list_(directory: Directory) -> None:
    """Show every checkpoint: its step, when it was written, its size and metrics.

    "resumed" is the step of the checkpoint that its training was resumed from. A checkpoint is
    "abandoned" if a later training continued from an older one. No training resumes from it.
    """
    from phalanx.checkpoint.history import abandoned_in, entries
    from phalanx.checkpoint.storage_dir import StorageDir

    with _storage_of(directory):
        found = entries(StorageDir.at(directory))
    if not found:
        info(f"no checkpoint in {directory}")
        return
    abandoned = abandoned_in([entry.manifest for entry in found if entry.manifest is not None])
    table = Table("step", "epoch", "written", "size", "resumed", "metrics")
    for entry in found:
        if entry.manifest is None:
            table.add_row(str(entry.step), *[""] * 4, f"[red]{entry.error}[/red]")
        else:
            table.add_row(*_row(entry.manifest, is_abandoned=entry.step in abandoned))
    Console().print(table)


@app.command("verify")
def verify_(directory: Directory) -> None:
    """Hold every byte against its checksum; exits with 1 if a checkpoint is damaged."""
    from phalanx.checkpoint.reader import verify
    from phalanx.checkpoint.storage_dir import StorageDir

    with _storage_of(directory):
        found = dict(verify(StorageDir.at(directory)))
    if not found:
        info(f"no checkpoint in {directory}")
    for step, wrong in found.items():
        error(f"step {step}: {wrong}") if wrong else info(f"step {step}: whole")
    sys.exit(1 if any(found.values()) else 0)


@app.command("prune")
def prune_(
    directory: Directory,
    max_to_keep: Annotated[
        int, typer.Option(help="Number of checkpoints to keep, those saved last.")
    ] = 3,
    best_metric: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC:min|max", help="Metric whose best checkpoint is kept too: val_loss:min."
        ),
    ] = None,
    uncommitted: Annotated[
        bool,
        typer.Option(help="Remove uncommitted checkpoints too; only while nothing writes."),
    ] = False,
    abandoned: Annotated[
        bool,
        typer.Option(help="Remove the checkpoints of abandoned branches too; see 'list'."),
    ] = False,
) -> None:
    """Remove old checkpoints."""
    from phalanx.checkpoint.retention import Retention, prune
    from phalanx.checkpoint.storage_dir import StorageDir

    named = None if best_metric is None else tuple(best_metric.rpartition(":")[::2])
    retention = Retention(max_to_keep=max_to_keep, best=named)  # type: ignore[arg-type]  # it checks
    with _storage_of(directory):
        removed = prune(
            StorageDir.at(directory), retention, uncommitted=uncommitted, abandoned=abandoned
        )
    info(f"removed {', '.join(removed) or 'nothing'}")


@contextmanager
def _storage_of(directory: str) -> Iterator[None]:
    """Report errors of the storage as `CheckpointError`."""
    from phalanx.errors import CheckpointError

    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"The storage of {directory} refused: {str(error).rstrip('.')}. Look at its keys, "
            "rights, address and network."
        ) from error


def _row(manifest: Manifest, *, is_abandoned: bool) -> tuple[str, ...]:
    lineage = manifest.state.get("lineage", {})
    metrics = (f"{name}: {float(value):.4g}" for name, value in manifest.metrics.items())
    return (
        str(manifest.step),
        str(manifest.epoch),
        datetime.fromtimestamp(manifest.written).strftime("%Y-%m-%d %H:%M:%S"),
        decimal(manifest.size),
        "abandoned" if is_abandoned else str(lineage.get("resumed_from") or ""),
        ", ".join(metrics),
    )
