"""Replace attributes, and put them back exactly as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_ABSENT = object()


class Patches:
    """A set of attribute replacements that is put on and taken off as one.

    Entering twice and leaving once keeps them on: each user of the patches enters and
    leaves on its own.
    """

    def __init__(self, replacements: Callable[[], Mapping[tuple[Any, str], Any]]) -> None:
        """Take a function that makes {(owner, attribute name): replacement}, called on entry."""
        self._make = replacements
        self._saved: list[tuple[Any, str, Any]] = []
        self._depth = 0

    @property
    def on(self) -> bool:
        """Whether the replacements are in place now."""
        return self._depth > 0

    def __enter__(self) -> Patches:
        if self._depth == 0:
            try:
                for (owner, name), replacement in self._make().items():
                    self._saved.append((owner, name, vars(owner).get(name, _ABSENT)))
                    setattr(owner, name, replacement)
            except BaseException:
                self._restore()
                raise
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._restore()

    def _restore(self) -> None:
        while self._saved:
            owner, name, original = self._saved.pop()
            if vars(owner).get(name, _ABSENT) is original:
                continue  # it could not be replaced
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
