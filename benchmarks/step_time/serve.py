"""A contender's process: `python -m step_time.serve CONTENDER PLACE`; a line of input is a block.

A command is `{"model": ..., "steps": ..., "warm_up": ...}`; the answer is
a `Lap`'s fields or `{"error": ...}`. Answers go to what was
standard output; whatever else prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict

from step_time.place import Place


def main(contender: str, place: Place) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    place.pin()
    try:
        served = importlib.import_module(f"step_time.contenders.{contender}").Contender(place)
        print(json.dumps({"ready": True}), file=answers)
        for line in sys.stdin:
            command = json.loads(line)
            lap = served.block(command["model"], command["steps"], command["warm_up"])
            print(json.dumps(asdict(lap)), file=answers)
    except Exception as error:
        print(json.dumps({"error": _short(error)}), file=answers)
        raise


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:48]}{' ...' if len(text) > 48 else ''}"


if __name__ == "__main__":
    main(sys.argv[1], Place.from_json(sys.argv[2]))
