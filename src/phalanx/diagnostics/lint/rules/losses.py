"""Losses in which a row of a batch meets the other rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Function
from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.import_names import last_part
from phalanx.diagnostics.lint.script import Script

_STEPS = ("train_step", "test_step", "compute_loss")
_PRODUCTS = ("matmul", "dot", "einsum")
_COUNTS_ROWS = ("range", "arange", "eye")


def _across_batch(script: Script) -> Iterator[Spot]:
    if script.calls("all_gather_batch"):
        return
    for function in _losses(script):
        nodes = list(ast.walk(function))
        numbered = any(
            isinstance(node, ast.Call) and last_part(node.func) in _COUNTS_ROWS for node in nodes
        )
        for node in nodes:
            if isinstance(node, (ast.Call, ast.BinOp)) and _is_of_rows(node, numbered):
                yield Spot(node=node, what="Each row of the batch is compared with all others")
    for function in _regularizers_of_activity(script):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _meets_itself(node):
                yield Spot(node=node, what="Each row of the batch is multiplied with all others")
    for node in script.nodes:
        if isinstance(node, ast.Call) and _contracts_all(node):
            yield Spot(node=node, what="Two axes, the batch's among them, are added up")


def _losses(script: Script) -> Iterator[Function]:
    """The functions that compute a loss, as far as names show."""
    for node in script.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
            node.name in _STEPS or "loss" in node.name.lower()
        ):
            yield node
        elif isinstance(node, ast.ClassDef) and any(
            "loss" in last_part(base).lower() for base in (*node.bases, ast.Name(id=node.name))
        ):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "call":
                    yield item


def _regularizers_of_activity(script: Script) -> Iterator[Function]:
    """What regularizers compute, in a script that gives a layer's output to one.

    Those of kernels, which have no rows, are written in the same way.
    """
    if not any(
        isinstance(node, ast.keyword) and node.arg == "activity_regularizer"
        for node in script.nodes
    ):
        return
    for node in script.nodes:
        if isinstance(node, ast.ClassDef) and any(
            "regularizer" in last_part(base).lower() for base in node.bases
        ):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__call__":
                    yield item


def _is_of_rows(node: ast.Call | ast.BinOp, numbered: bool) -> bool:
    """Whether it is a product of rows with rows.

    Args:
        node: what may be one.
        numbered: whether the rows are numbered next to it, as labels of such a product are.
    """
    if isinstance(node, ast.BinOp):
        if not isinstance(node.op, ast.MatMult):
            return False
        factors = [node.left, node.right]
    elif last_part(node.func) in _PRODUCTS:
        if last_part(node.func) == "einsum":
            return numbered and _is_outer(node)
        factors = node.args[:2]
    else:
        return False
    if len(factors) < 2:
        return False
    turned = [_turned(factor) for factor in factors]
    flags = {keyword.arg for keyword in getattr(node, "keywords", ())}
    if not any(turned) and not flags & {"transpose_a", "transpose_b"}:
        return False
    one, other = (ast.dump(of or factor) for of, factor in zip(turned, factors, strict=True))
    return numbered or one == other


def _turned(node: ast.expr) -> ast.expr | None:
    """What is transposed in an expression, None where nothing is."""
    if isinstance(node, ast.Call) and last_part(node.func) == "transpose":
        if node.args:
            return node.args[0]
        return node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return node.value
    return None


def _is_outer(node: ast.Call) -> bool:
    """Whether an einsum's first index of each factor is in the result: "ae,be->ab"."""
    text = node.args[0] if node.args else None
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return False
    given, arrow, result = text.value.replace(" ", "").partition("->")
    factors = given.split(",")
    if not arrow or len(factors) != 2 or not all(factors):
        return False
    first, second = (factor[0] for factor in factors)
    return first != second and {first, second} <= set(result)


def _meets_itself(node: ast.Call) -> bool:
    """Whether a call is a tensordot of a tensor with itself, over axes that are not the rows'."""
    if last_part(node.func) != "tensordot" or len(node.args) < 2:
        return False
    axes = [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "axes")]
    numbers = [n.value for axis in axes for n in ast.walk(axis) if isinstance(n, ast.Constant)]
    return ast.dump(node.args[0]) == ast.dump(node.args[1]) and len(numbers) > 1 and all(numbers)


def _contracts_all(node: ast.Call) -> bool:
    """Whether a call is a tensordot over two axes, which are all that rows of features have."""
    if last_part(node.func) != "tensordot":
        return False
    axes = [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "axes")]
    return any(isinstance(axis, ast.Constant) and axis.value == 2 for axis in axes)


RULES = (
    Rule(
        name="loss-across-batch",
        severity="hint",
        why="In a step of fit each worker computes it of the rows of all workers. In an eager "
        "step, a condition or a loop it has its own rows alone.",
        remedy="Nothing to do in a step of fit. Elsewhere gather the rows of all workers first: "
        "phalanx.all_gather_batch(tensor), which gradients go through.",
        find=_across_batch,
    ),
)
