"""Batches, steps and learning rates that are reckoned with the number of workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Site
from phalanx.diagnostics.lint.distributed_code import (
    has_parameter_servers,
    is_worker_count,
    shares_as_horovod,
)
from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.script import Script

_MAKES_SHARES = (
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
)
_STEPS = ("steps_per_epoch", "validation_steps")


def _batch_per_worker(script: Script) -> Iterator[Spot]:
    if _is_per_worker(script):
        return
    for site in script.sites:
        batch = _batch_of(site)
        divided = batch and _value_that(script, batch, _is_divided)
        if divided:
            yield Spot(node=divided, what="The batch size is one worker's share of the batch")


def _steps_per_worker(script: Script) -> Iterator[Spot]:
    batches = [batch for batch in map(_batch_of, script.sites) if batch is not None]
    # Fewer steps of larger batches are an epoch.
    scaled = any(_value_that(script, batch, _is_multiplied) for batch in batches)
    if _is_per_worker(script) or scaled:
        return
    for site in script.sites:
        for keyword in site.call.keywords if site.method == "fit" else ():
            divided = keyword.arg in _STEPS and _value_that(script, keyword.value, _is_divided)
            if divided:
                yield Spot(node=divided, what=f"{keyword.arg} is divided by the number of workers")


def _scaled_twice(script: Script) -> Iterator[Spot]:
    for node in script.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for count, other in ((node.left, node.right), (node.right, node.left)):
                if is_worker_count(script, count) and _value_that(script, other, _is_multiplied):
                    yield Spot(node=node, what="Multiplied by the number of workers a second time")
                    break
    for site in script.sites:
        if site.name == "phalanx.schedules.LinearScaling" and site.call.args:
            factor = any(keyword.arg == "factor" for keyword in site.call.keywords)
            if not factor and _value_that(script, site.call.args[0], _is_multiplied):
                yield Spot(
                    node=site.node,
                    what="LinearScaling multiplies by the number of replicas a second time",
                )


def _is_per_worker(script: Script) -> bool:
    own = shares_as_horovod(script) or has_parameter_servers(script)
    return own or script.calls(*_MAKES_SHARES, "get_per_replica_batch_size")


def _batch_of(site: Site) -> ast.expr | None:
    """The batch size in `fit(batch_size=)` or `dataset.batch()`."""
    if site.name == "?.batch" and site.call.args:
        return site.call.args[0]
    if site.method == "fit" or site.name == "?.batch":
        return next((k.value for k in site.call.keywords if k.arg == "batch_size"), None)
    return None


def _is_divided(script: Script, node: ast.expr) -> bool:
    divides = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv))
    return divides and isinstance(node, ast.BinOp) and is_worker_count(script, node.right)


def _is_multiplied(script: Script, node: ast.expr) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mult)
        and (is_worker_count(script, node.left) or is_worker_count(script, node.right))
    )


def _value_that(
    script: Script, node: ast.expr, test: object, seen: tuple[str, ...] = ()
) -> ast.expr | None:
    """The expression, or the one that its names were given, for which `test` holds."""
    assert callable(test)
    if test(script, node):
        return node
    if isinstance(node, ast.Call) and script.name(node.func) in ("int", "float", "round", "max"):
        found = (_value_that(script, argument, test, seen) for argument in node.args)
        return next((one for one in found if one is not None), None)
    if isinstance(node, ast.Name) and node.id not in seen:
        seen = (*seen, node.id)
        values = script.values.get(node.id, [])
        found = (_value_that(script, value, test, seen) for value in values)
        return next((one for one in found if one is not None), None)
    return None


RULES = (
    Rule(
        name="batch-per-worker",
        severity="error",
        why="batch_size is the global batch, under tf.distribute and under Phalanx, which divides "
        "it among the replicas: this trains on batches that are too small.",
        remedy="Give the global batch, undivided.",
        find=_batch_per_worker,
    ),
    Rule(
        name="steps-per-worker",
        severity="warning",
        why="A step takes one global batch, whatever the number of workers: an epoch would see "
        "only a part of the data.",
        remedy="Give the number of global batches, or leave it out.",
        find=_steps_per_worker,
    ),
    Rule(
        name="scaled-twice",
        severity="error",
        why="A learning rate or batch then grows with the square of the number of workers.",
        remedy="Multiply once. If the global batch stays what it was on one device, leave the "
        "learning rate as it was too.",
        find=_scaled_twice,
    ),
)
