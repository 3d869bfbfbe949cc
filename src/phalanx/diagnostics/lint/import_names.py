"""What the names in a script refer to: `tf.keras.Model` and `Model` are both `keras.Model`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

UNKNOWN = "?"
"""What precedes the method in the name of a call on an object: `?.fit`."""

# The same thing has several homes; the first form of each is the one that rules use.
_HOMES = (
    (re.compile(r"^horovod(\.tensorflow)?(\.keras)?(?=\.|$)"), "horovod"),
    (re.compile(r"^tensorflow\.compat\.v2(?=\.|$)"), "tensorflow"),
    (re.compile(r"^tensorflow\.keras(?=\.|$)"), "keras"),
    (re.compile(r"^tensorflow(?=\.(optimizers|losses|metrics|initializers)\.)"), "keras"),
    (re.compile(r"^keras\.api(\._v2)?(\.keras)?(?=\.|$)"), "keras"),
    (
        re.compile(r"^tensorflow\.distribute\.experimental(?=\.\w*Strategy$)"),
        "tensorflow.distribute",
    ),
    (re.compile(r"^keras\.models\.(?=Sequential$|Model$)"), "keras."),
    (re.compile(r"^keras\.optimizers\.legacy(?=\.)"), "keras.optimizers"),
)


def node_of(name: str) -> str:
    """One name for what has several."""
    for pattern, home in _HOMES:
        name = pattern.sub(home, name)
    return name


def imported_names(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """What each imported name refers to, wherever in the script it is imported."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    first = alias.name.split(".")[0]
                    names[first] = first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def imported_modules(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.stmt, str]]:
    """Every import with the full name of what it takes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def full_name(node: ast.expr, names: Mapping[str, str]) -> str:
    """The dotted name of an expression; `?.method` where it belongs to an object."""
    if isinstance(node, ast.Name):
        return node_of(names.get(node.id, node.id))
    if isinstance(node, ast.Attribute):
        base = full_name(node.value, names) if _is_imported(node.value, names) else UNKNOWN
        return node_of(f"{base}.{node.attr}")
    return UNKNOWN


def _is_imported(node: ast.expr, names: Mapping[str, str]) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def last_part(node: ast.expr) -> str:
    """The last word of a name: `rank` of `self.cluster.rank`; empty for what has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
