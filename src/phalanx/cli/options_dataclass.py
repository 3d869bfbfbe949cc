"""A command whose options are the fields of a dataclass, each declared once with its help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")
Result = TypeVar("Result")


def takes(
    options: type[Options],
) -> Callable[[Callable[[Options], Result]], Callable[..., Result]]:
    """Make a function of one dataclass a command for typer.

    Args:
        options: the dataclass; its fields are `Annotated` with `typer.Option` or `typer.Argument`.
    """
    hints = get_type_hints(options, include_extras=True)
    signature = inspect.signature(options)
    fields = [field.replace(annotation=hints[name]) for name, field in signature.parameters.items()]

    def decorate(function: Callable[[Options], Result]) -> Callable[..., Result]:
        def command(**values: Any) -> Result:
            return function(options(**values))

        vars(command)["__signature__"] = signature.replace(parameters=fields)  # what typer reads
        return command

    return decorate
