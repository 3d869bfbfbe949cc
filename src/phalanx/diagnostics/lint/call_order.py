"""The calls of a script in the order in which they would run, as far as its text shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.diagnostics.lint.import_names import full_name

MOST_SITES = 20_000
"""Functions that call each other many times over would be followed forever."""

_SETS_THE_STRATEGY = ("experimental_set_strategy", "__enter__")
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_EXITS = ("sys.exit", "exit", "quit", "os._exit")


@dataclass(frozen=True, kw_only=True)
class Guard:
    """A condition under which something runs, and what runs where it does not hold."""

    test: ast.expr
    otherwise: tuple[ast.AST, ...]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A call, or a value set in the environment.

    Attributes:
        node: its place in the script.
        name: what is called; `environ[NAME]` where a variable of the environment is set.
        scoped: whether it runs within a strategy's scope.
        guards: the conditions that it runs under, the outermost first.
    """

    node: ast.expr | ast.stmt
    name: str
    scoped: bool
    guards: tuple[Guard, ...]

    @property
    def method(self) -> str:
        """The last word of the name."""
        return self.name.rpartition(".")[2]

    @property
    def call(self) -> ast.Call:
        """The call itself; one without arguments where the environment is set."""
        if isinstance(self.node, ast.Call):
            return self.node
        return ast.Call(func=ast.Name(id=self.name), args=[], keywords=[])


@dataclass(frozen=True)
class _Surroundings:
    scoped: bool = False
    guards: tuple[Guard, ...] = ()
    inside: tuple[str, ...] = ()


Function = ast.FunctionDef | ast.AsyncFunctionDef


class Walk:
    """One way through a script: calls of its own functions are followed where they are made."""

    def __init__(self, functions: Mapping[str, Function], names: Mapping[str, str]) -> None:
        self._functions = functions
        self._names = names
        self._set_for_good = False
        self.sites: list[Site] = []
        self.entered: set[str] = set()

    def block(self, body: Sequence[ast.stmt], around: _Surroundings | None = None) -> None:
        """Go through statements, one after the other."""
        around = around or _Surroundings()
        for statement in body:
            self._statement(statement, around)
            if isinstance(statement, ast.If) and not statement.orelse and self._leaves(statement):
                guard = Guard(test=statement.test, otherwise=tuple(statement.body))
                around = replace(around, guards=(*around.guards, guard))

    def _statement(self, node: ast.stmt, around: _Surroundings) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr, around)
                scoped = any("scope" in ast.unparse(item.context_expr) for item in node.items)
                self.block(node.body, replace(around, scoped=around.scoped or scoped))
            case ast.If():
                self._expression(node.test, around)
                self.block(node.body, _under(around, node.test, node.orelse))
                self.block(node.orelse, _under(around, node.test, node.body))
            case _:
                self._environment(node, around)
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._expression(child, around)
                for body in _bodies(node):
                    self.block(body, around)

    def _expression(self, node: ast.expr, around: _Surroundings) -> None:
        if isinstance(node, ast.IfExp):
            self._expression(node.test, around)
            self._expression(node.body, _under(around, node.test, [node.orelse]))
            self._expression(node.orelse, _under(around, node.test, [node.body]))
            return
        for child in _inner(node):
            self._expression(child, around)
        if isinstance(node, ast.Call):
            self._call(node, around)

    def _call(self, node: ast.Call, around: _Surroundings) -> None:
        if len(self.sites) >= MOST_SITES:
            return
        name = full_name(node.func, self._names)
        self._add(node, name, around)
        if name.rpartition(".")[2] in _SETS_THE_STRATEGY:
            self._set_for_good = True
        own = node.func.id if isinstance(node.func, ast.Name) else ""
        if own in self._functions and own not in around.inside:
            self.entered.add(own)
            inside = replace(around, inside=(*around.inside, own))
            self.block(self._functions[own].body, inside)

    def _environment(self, node: ast.stmt, around: _Surroundings) -> None:
        """Note `os.environ[NAME] = value`."""
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if (
                isinstance(target, ast.Subscript)
                and full_name(target.value, self._names) in ("os.environ", "environ")
                and isinstance(target.slice, ast.Constant)
                and isinstance(target.slice.value, str)
            ):
                self._add(node, f"environ[{target.slice.value}]", around)

    def _add(self, node: ast.expr | ast.stmt, name: str, around: _Surroundings) -> None:
        scoped = around.scoped or self._set_for_good
        self.sites.append(Site(node=node, name=name, scoped=scoped, guards=around.guards))

    def _leaves(self, node: ast.If) -> bool:
        last = node.body[-1]
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
            return full_name(last.value.func, self._names) in _EXITS
        return isinstance(last, _LEAVES)


def _under(around: _Surroundings, test: ast.expr, otherwise: Sequence[ast.AST]) -> _Surroundings:
    guard = Guard(test=test, otherwise=tuple(otherwise))
    return replace(around, guards=(*around.guards, guard))


def _inner(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions within one, in the order in which Python evaluates them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.keyword):
            yield child.value
        elif isinstance(child, ast.comprehension):
            yield from (child.iter, *child.ifs)


def _bodies(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        body = getattr(node, field, None)
        if isinstance(body, list):
            yield body
        if field == "body":
            yield from (handler.body for handler in getattr(node, "handlers", ()))
            yield from (case.body for case in getattr(node, "cases", ()))
