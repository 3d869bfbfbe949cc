"""Which operations of a graph some code has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def ops_created_by_caller(graph: Any) -> Callable[[], list[Any]]:
    """What gives the operations that are made in `graph` from now until it is called."""
    before = len(graph.get_operations())
    return lambda: list(graph.get_operations()[before:])
