"""What `phalanx debug replay` starts, in a process of its own: find a kept step and run it again.

Arguments: `RUN NAME FORM [SCRIPT ARGS...]`; NAME is that of a kept step, or empty for the first;
FORM is "text" or "json".
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from phalanx.debug.models import model_of, model_of_script
from phalanx.debug.replay import Replay
from phalanx.debug.words import growth_in_words, in_words
from phalanx.errors import OptionError, PhalanxError
from phalanx.state.captured import captures_in, read_captured

SCHEMA = 1


def chosen(run: Path, name: str) -> Path:
    """The directory of the kept step `name` of a run, or of its first.

    Raises:
        OptionError: there is none.
    """
    kept = captures_in(run)
    found = [path for path in kept if name in ("", path.name)]
    if not found:
        there = ", ".join(path.name for path in kept) or "none"
        raise OptionError(
            f"{run} holds no kept step{f' named {name!r}' * bool(name)}; found {there}. A step is "
            "kept when a loss or gradient stops being finite under phalanx run, unless that is "
            "ignored."
        )
    return found[0]


def main(arguments: list[str]) -> int:
    """Replay one step and print what was found; 1 where it was finite this time, else 0."""
    run, name, form, *script = arguments
    try:
        directory = chosen(Path(run), name)
        try:
            captured = read_captured(directory)
        except (OSError, ValueError, KeyError) as error:
            raise OptionError(f"The kept step in {directory} cannot be read: {error}.") from error
        model = model_of_script(script[0], script[1:]) if script else model_of(captured)
        found = Replay(model, captured).run()
    except PhalanxError as error:
        print(f"phalanx: {error}", file=sys.stderr)
        return 2
    if form == "json":
        document = {"schema": SCHEMA, "step": asdict(captured.about), "found": asdict(found)}
        print(json.dumps(document, indent=2))
    else:
        print("\n".join([str(directory), *in_words(found, captured.about)]))
        print(
            "\n".join(["largest absolute value after each layer:", *growth_in_words(found.growth)])
        )
    return 0 if found.phase else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
