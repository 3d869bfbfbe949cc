"""Options and arguments that `phalanx run` and `phalanx submit` share, as typer takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer


def choice_option(names: Sequence[str], *flags: str, **attributes: Any) -> Any:
    """A `typer.Option` whose help and shell completion list `names`."""
    return typer.Option(
        *flags, metavar="|".join(names), autocompletion=lambda: list(names), **attributes
    )


Target = Annotated[str, typer.Argument(metavar="SCRIPT", help="The script or module to run.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")
]
AsModule = Annotated[
    bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module, as in python -m.")
]
Env = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Environment variable for the workers (repeatable)."),
]
EnvFrom = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="File with lines NAME=VALUE of environment variables for the workers (repeatable).",
    ),
]
MaxRestarts = Annotated[int, typer.Option(help="Maximum number of restarts after failures.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume the run of that --name, if it exists.")
]
