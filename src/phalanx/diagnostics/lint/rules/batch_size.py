"""Steps and layers that name the size of the global batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Function
from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.import_names import last_part
from phalanx.diagnostics.lint.script import Script

_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "call", "__call__")
_OF_SHAPE = ("fill", "full", "normal", "ones", "randint", "truncated_normal", "uniform", "zeros")
_SHAPE = ("shape", "dims", "newshape")
_SEGMENTS = "num_segments"


def _named_batch_size(script: Script) -> Iterator[Spot]:
    names = _names_of_batch(script)
    for function in _of_steps(script):
        own = {argument.arg for argument in function.args.args} | _assigned_in(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or (size := _size_of(node)) is None:
                continue
            for factor in _factors(size):
                is_own = isinstance(factor, ast.Name) and factor.id in own
                if last_part(factor) in names and not is_own:
                    what = f"{ast.unparse(factor)} names the size of the global batch"
                    yield Spot(node=node, what=what)
                    break


def _factors(size: ast.expr) -> Iterator[ast.expr]:
    if isinstance(size, ast.BinOp):
        yield from _factors(size.left)
        yield from _factors(size.right)
    elif isinstance(size, (ast.Name, ast.Attribute)):
        yield size


def _of_steps(script: Script) -> Iterator[Function]:
    """The functions that compute with a batch: the methods of a step's, and those of layers."""
    for node in script.nodes:
        if isinstance(node, ast.ClassDef) and node.bases:
            for item in node.body:
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
                    item.name in _STEPS
                ):
                    yield item


def _names_of_batch(script: Script) -> set[str]:
    """The names of the size of the batch, and of what is a multiple of it."""
    names = {name for name in _all_names(script) if _is_name_of_batch(name)}
    for site in script.sites:
        given = [k.value for k in site.call.keywords if k.arg == "batch_size"]
        if site.name == "?.batch" and site.call.args:
            given.append(site.call.args[0])
        if site.method in ("batch", "fit"):
            names |= {last_part(one) for one in given if isinstance(one, (ast.Name, ast.Attribute))}
    for name, values in script.values.items():
        for value in values:
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
                factors = (value.left, value.right)
                if any(last_part(f) in names for f in factors if isinstance(f, ast.Name)):
                    names.add(name)
    return names - {""}


def _all_names(script: Script) -> Iterator[str]:
    for node in script.nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _is_name_of_batch(name: str) -> bool:
    return name.lower().lstrip("_") in ("batch_size", "batchsize", "global_batch_size")


def _assigned_in(function: Function) -> set[str]:
    """The names that a function assigns, such as `batch_size = tf.shape(x)[0]`."""
    nodes = ast.walk(function)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _size_of(call: ast.Call) -> ast.expr | None:
    """What a call gives as the number of rows: a shape's first entry, or how many segments."""
    name = last_part(call.func)
    for keyword in call.keywords:
        if keyword.arg == _SEGMENTS:
            return keyword.value
    if name in _OF_SHAPE:
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg in _SHAPE)]
    elif name == "reshape":
        given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg in _SHAPE)]
    else:
        return None
    shape = given[0] if given else None
    return shape.elts[0] if isinstance(shape, (ast.Tuple, ast.List)) and shape.elts else None


RULES = (
    Rule(
        name="named-batch-size",
        severity="warning",
        why="A worker holds a part of the batch, and so fewer rows. fit divides random draws of "
        "this size, and tf.ones and similar after them, in full batches; everything else fails, or "
        "computes something else than one device.",
        remedy="Take the size from the batch: tf.shape(x)[0], or keras.ops.shape(x)[0].",
        find=_named_batch_size,
    ),
)
