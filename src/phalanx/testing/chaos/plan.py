"""Plans of faults: drawn from a seed, written as text, put before a command."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from phalanx.errors import ConfigurationError
from phalanx.testing.chaos import fault_types as known
from phalanx.testing.chaos.fault_types import (
    DropNetwork,
    Exit,
    FailWrites,
    Fault,
    Freeze,
    Kill,
    Plan,
    Raise,
    SlowDown,
    SlowWrites,
    VanishingDirectory,
)

MODULE = "phalanx.testing.chaos"
_ERRORS = ("ENOSPC", "EIO", "EROFS")
_FAULTS = (
    Kill, Exit, Freeze, SlowDown, Raise, DropNetwork, FailWrites, SlowWrites, VanishingDirectory,
)  # fmt: skip
_KINDS: dict[str, type[Fault]] = {kind.__name__: kind for kind in _FAULTS}


def random_plan(
    seed: int,
    *,
    workers: int,
    steps: int,
    kinds: Sequence[type[Fault]] = (Kill, Freeze, FailWrites),
    faults: int = 3,
) -> Plan:
    """Faults drawn at random: the same for the same arguments, on every machine.

    Args:
        seed: of the draw.
        workers: how many train; each fault takes one of them.
        steps: the training's; each worker's fault takes one of them.
        kinds: what may happen.
        faults: how many.

    Raises:
        ConfigurationError: there is no worker, no step or no kind to draw from.
    """
    if workers < 1 or steps < 1 or not kinds or faults < 0:
        raise ConfigurationError(
            "A random plan needs workers, steps and kinds to draw from; found "
            f"workers={workers}, steps={steps}, {len(kinds)} kinds, faults={faults}."
        )
    draw = random.Random(seed)
    return tuple(
        _random_fault(draw, draw.choice(list(kinds)), workers, steps) for _ in range(faults)
    )


def _random_fault(draw: random.Random, kind: type[Fault], workers: int, steps: int) -> Fault:
    worker, step = draw.randrange(workers), draw.randint(1, steps)
    if issubclass(kind, known.StorageFault):
        more: dict[str, Any] = {"nth": draw.randint(1, 12), "times": draw.randint(1, 2)}
        if kind is FailWrites:
            more["error"] = draw.choice(_ERRORS)
        if kind is SlowWrites:
            more["seconds"] = round(draw.uniform(0.1, 1.0), 2)
        return kind(worker=worker, **more)
    more = {}
    if kind is Freeze:
        more["seconds"] = round(draw.uniform(0.5, 3.0), 2)
    if kind is SlowDown:
        more = {"seconds": round(draw.uniform(0.05, 0.5), 2), "steps": draw.randint(1, 4)}
    return kind(worker=worker, step=step, **more)  # type: ignore[call-arg]


def show_plan(plan: Iterable[Fault]) -> str:
    """The plan as text, which `parse_plan` reads."""
    return "; ".join(map(str, plan))


def parse_plan(text: str) -> Plan:
    """Read a plan: `Kill(worker=1, step=7); FailWrites(nth=3)`.

    `random_plan(3, workers=2, steps=40)` stands for what it draws. Nothing is executed: the
    text is taken apart as Python, and only names and numbers are looked at.

    Raises:
        ConfigurationError: the text is no plan.
    """
    plan: list[Fault] = []
    for part in text.split(";"):
        if part.strip():
            made = _call(part.strip(), text)
            plan.extend(made if isinstance(made, tuple) else (made,))
    return tuple(plan)


def _call(part: str, text: str) -> Any:
    try:
        call = ast.parse(part, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not a fault with its arguments in brackets")
        functions: dict[str, Callable[..., Any]] = {**_KINDS, "random_plan": random_plan}
        function = functions[call.func.id]
        arguments = [_value(node) for node in call.args]
        return function(*arguments, **{str(k.arg): _value(k.value) for k in call.keywords})
    except ConfigurationError:
        raise
    except (SyntaxError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"Cannot read {part!r} in the plan {text!r} ({error}). Write faults such as "
            f"Kill(worker=1, step=7), with ';' between them; there are: {', '.join(_KINDS)}."
        ) from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _KINDS[node.id]
    if isinstance(node, ast.Tuple | ast.List):
        return [_value(each) for each in node.elts]
    return ast.literal_eval(node)


def command(plan: Iterable[Fault], *script: str) -> tuple[str, ...]:
    """The words that stand for `script` and its arguments after the options of `phalanx run`.

    Args:
        plan: what is to happen.
        *script: as on the command line: "train.py", "--epochs", "3", or "-m", "package.train".
    """
    return ("-m", MODULE, show_plan(plan), *script)
