"""`phalanx watch`: a run while it runs, as a page in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from phalanx.cli.run_options import Run, RunDir

if TYPE_CHECKING:
    from phalanx.report.live import Watched

HELP = """Show a run as it goes: each worker's state, step, loss, speed, gradients and memory.

RUN is a run's name or the path of its directory; without one the newest run is taken. \
The page ends with the run; Ctrl-C ends the page and leaves the run alone.

[bold]Examples[/bold]

  phalanx watch

  phalanx watch first --interval 5

  phalanx watch first --once
"""

TERMINAL_SECONDS, PLAIN_SECONDS = 1.0, 10.0


def watch(
    run: Run = None,
    run_dir: RunDir = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Refresh interval.",
            show_default=f"{TERMINAL_SECONDS:g}; {PLAIN_SECONDS:g} if this is no terminal",
        ),
    ] = None,
) -> None:
    """Find the run and follow it to its end."""
    # numpy takes its time, which --help has no use for.
    from phalanx.report.live import Watched
    from phalanx.report.run_lookup import find_run

    watched = Watched(find_run(run, run_dir))
    console = Console()
    try:
        if once:
            now = time.time()
            watched.update(now)
            console.print(page(watched, console, now))
        elif console.is_terminal:
            follow_live(watched, console, interval or TERMINAL_SECONDS)
        else:
            follow_plainly(watched, console, interval or PLAIN_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit from None


def page(watched: Watched, console: Console, now: float) -> RenderableType:
    """What is to be seen at the time `now`."""
    from phalanx.report.terminal_view import live_page

    return live_page(
        watched.run,
        name=watched.name,
        now=now,
        damages=watched.damages,
        width=console.width,
        height=console.height if console.is_terminal else None,
    )


def follow_live(
    watched: Watched,
    console: Console,
    interval: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Redraw the page in place until the run has ended; the last page stays."""
    with Live(console=console, auto_refresh=False) as live:

        def show(now: float) -> None:
            live.update(page(watched, console, now), refresh=True)

        _follow(watched, show, interval, sleep)


def follow_plainly(
    watched: Watched,
    console: Console,
    interval: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the page again and again until the run has ended."""

    def show(now: float) -> None:
        console.print(page(watched, console, now))
        if not watched.is_over:
            console.print()
        console.file.flush()

    _follow(watched, show, interval, sleep)


def _follow(
    watched: Watched,
    show: Callable[[float], None],
    interval: float,
    sleep: Callable[[float], None],
) -> None:
    began = time.time() - time.monotonic()  # from here on no setting of the clock counts
    while True:
        now = began + time.monotonic()
        watched.update(now)
        show(now)
        if watched.is_over:
            return
        sleep(interval)
