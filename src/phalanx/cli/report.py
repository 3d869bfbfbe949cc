"""`phalanx report`: one HTML page about a run, or about several beside each other."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.console import info
from phalanx.cli.run_options import RunDir
from phalanx.errors import ConfigurationError
from phalanx.launcher.shared_options import choice_option
from phalanx.launcher.trackers import TRACKER_NAMES, check_installed, parse_trackers

if TYPE_CHECKING:
    from phalanx.report.run_data import RunData

HELP = """Write one self-contained HTML page about a run, from its event log.

RUN is the name of a run or the path of its directory; the default is the latest run. \
With several runs, the page compares them with the first.

[bold]Examples[/bold]

  phalanx report

  phalanx report first --output first.html

  phalanx report first second

  phalanx report first --json

  phalanx report first --to mlflow,wandb
"""


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Names or paths of runs.", show_default=False),
    ] = None,
    run_dir: RunDir = Path("runs"),
    output: Annotated[
        Path | None,
        typer.Option(help="File to write.", show_default="report.html in the run's directory"),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print numbers as JSON, to standard output without --output."),
    ] = False,
    to: Annotated[
        list[str] | None,
        choice_option(
            TRACKER_NAMES,
            help="Send the run to an experiment tracker, or the rest of it, instead of a page.",
            show_default=False,
        ),
    ] = None,
    tracker_project: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Project or experiment, with --to.", show_default="the tracker's"
        ),
    ] = None,
    tracker_artifacts: Annotated[
        bool,
        typer.Option("--tracker-artifacts", help="Send the model file, too, with --to."),
    ] = False,
) -> None:
    """Read the runs, make the page and write it; or send them to trackers."""
    if not to and (tracker_project is not None or tracker_artifacts):
        raise ConfigurationError(
            "--tracker-project and --tracker-artifacts are for --to, which is missing. Add --to "
            f"{'|'.join(TRACKER_NAMES)}, or leave them out."
        )
    if to and (as_json or output is not None):
        raise ConfigurationError(
            "--to sends the run to a tracker and writes no page and no JSON; found --json or "
            "--output too. Give two commands."
        )
    # numpy, plotly and jinja2 take their time, which --help has no use for.
    from phalanx.report.communication import communication
    from phalanx.report.communication_section import communication_line
    from phalanx.report.formatting import goodput_line
    from phalanx.report.run_data import load_run
    from phalanx.report.run_json import to_json
    from phalanx.report.run_lookup import find_run

    paths = (
        [find_run(requested, run_dir) for requested in runs] if runs else [find_run(None, run_dir)]
    )
    if to:
        for name in parse_trackers(to):
            for path in paths:
                send(path, name, project=tracker_project, artifacts=tracker_artifacts)
        return
    loaded = [load_run(path) for path in paths]
    now = time.time()
    if as_json and output is None:
        sys.stdout.write(to_json(loaded, now) + "\n")
        return
    path = output or default_output(paths)
    write_page(path, to_json(loaded, now) if as_json else html_of(loaded, now))
    info(f"wrote {path}")
    for data in loaded:
        name = f"{data.name}: " if len(loaded) > 1 else ""
        if data.goodput is not None:
            info(name + goodput_line(data.goodput.goodput, data.goodput.losses()))
        sent = communication(data)
        if sent is not None and (line := communication_line(sent)):
            info(name + line)


def send(path: Path, tracker: str, *, project: str | None, artifacts: bool) -> None:
    """Send what the tracker does not have of the run."""
    from functools import partial

    from phalanx.trackers.protocol import make_tracker
    from phalanx.trackers.sender import Sender

    check_installed([tracker])
    state = Sender(
        name=tracker,
        run_dir=path,
        make=partial(make_tracker, tracker),
        follows=False,
        project=project,
        artifacts=artifacts,
    ).run()
    info(f"sent {path.resolve().name} to {tracker}: {state.place}")


def default_output(runs: list[Path]) -> Path:
    """The page's default path: in the first run's directory."""
    if len(runs) == 1:
        return runs[0] / "report.html"
    return runs[0] / f"report-with-{'-and-'.join(run.resolve().name for run in runs[1:])}.html"


def html_of(runs: list[RunData], now: float) -> str:
    """The page about one run, or about several beside each other."""
    from phalanx.report.compare import compare_page
    from phalanx.report.html import render
    from phalanx.report.run_page import report_page

    return render(report_page(runs[0], now) if len(runs) == 1 else compare_page(runs, now))


def write_page(path: Path, text: str) -> None:
    """Write the file, whole.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"Cannot write the report to {path}: {error.strerror or error}. Give another --output."
        ) from error
