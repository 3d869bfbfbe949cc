"""A script as the rules see it: its names, its calls in order, and what was assigned to what."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from phalanx.diagnostics.lint.call_order import Function, Site, Walk
from phalanx.diagnostics.lint.import_names import (
    full_name,
    imported_modules,
    imported_names,
    last_part,
)


@dataclass(frozen=True, kw_only=True)
class Script:
    """The text of a script and what can be read from it."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, parents before children."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def names(self) -> dict[str, str]:
        """What imported names refer to."""
        return imported_names(self.nodes)

    @cached_property
    def modules(self) -> tuple[tuple[ast.stmt, str], ...]:
        """Every import and the full name of what it takes."""
        return tuple(imported_modules(self.nodes))

    def name(self, node: ast.expr) -> str:
        """The full name of an expression; `?.method` where it belongs to an object."""
        return full_name(node, self.names)

    def imports(self, *packages: str) -> bool:
        """Whether it imports one of the packages."""
        return any(name.split(".")[0] in packages for _, name in self.modules)

    @cached_property
    def values(self) -> dict[str, list[ast.expr]]:
        """Every value that a name is given, in the order of their lines."""
        values: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    values.setdefault(last_part(target), []).append(node.value)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                values.setdefault(last_part(node.target), []).append(node.value)
        values.pop("", None)
        return {name: sorted(given, key=lambda v: v.lineno) for name, given in values.items()}

    @cached_property
    def ways(self) -> tuple[tuple[Site, ...], ...]:
        """The calls in order: the module's way, and one for each function without callers.

        A function that the script calls by its name is part of its caller's way.
        """
        functions = self._functions
        main = Walk(functions, self.names)
        main.block(self.tree.body)
        ways, followed = [tuple(main.sites)], set(main.entered)
        for function in self._all_functions:
            if functions.get(function.name) is function and function.name in followed:
                continue
            walk = Walk(functions, self.names)
            walk.block(function.body)
            followed |= walk.entered
            ways.append(tuple(walk.sites))
        return tuple(ways)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The calls of all ways."""
        return tuple(site for way in self.ways for site in way)

    def calls(self, *methods: str) -> bool:
        """Whether anything of one of these names, last words, is called."""
        return any(site.method in methods for site in self.sites)

    @cached_property
    def _functions(self) -> dict[str, Function]:
        """The functions of the module and within functions; methods belong to objects."""
        functions: dict[str, Function] = {}
        methods = {
            id(item) for node in self.nodes if isinstance(node, ast.ClassDef) for item in node.body
        }
        for function in self._all_functions:
            if id(function) not in methods:
                functions.setdefault(function.name, function)
        return functions

    @cached_property
    def _all_functions(self) -> tuple[Function, ...]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return tuple(node for node in self.nodes if isinstance(node, kinds))
