"""Data that a script hands out to the workers on its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Site
from phalanx.diagnostics.lint.distributed_code import is_about_rank, shares_as_horovod
from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.script import Script

_MAKES_SHARES = (
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
)


def _by_worker(script: Script) -> Iterator[Spot]:
    # Horovod's own way, and data made for each input pipeline, are each worker's own.
    if shares_as_horovod(script) or script.calls(*_MAKES_SHARES):
        return
    if not script.calls("fit", "evaluate", "experimental_distribute_dataset"):
        return
    for site in _shards(script):
        if any(is_about_rank(script, argument) for argument in _arguments(site.call)):
            yield Spot(node=site.node, what="The data is sharded by worker")


def _unseeded(script: Script) -> Iterator[Spot]:
    for site in _shards(script):
        shuffle = _shuffle_before(script, site.call)
        if shuffle is not None:
            yield Spot(node=shuffle, what="Data is shuffled without a seed, then sharded")


def _shards(script: Script) -> Iterator[Site]:
    for site in script.sites:
        if site.name == "?.shard" and len(_arguments(site.call)) == 2:
            yield site


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _shuffle_before(script: Script, shard: ast.Call) -> ast.Call | None:
    """The unseeded `shuffle` in the chain of calls that ends in `shard`."""
    node: ast.expr = shard
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "shuffle" and not _has_seed(node):
                return node
            node = node.func.value
        elif isinstance(node, ast.Name):
            line = node.lineno
            before = [v for v in script.values.get(node.id, []) if v.lineno < line]
            if not before:
                return None
            node = before[-1]
        else:
            return None


def _has_seed(shuffle: ast.Call) -> bool:
    return len(shuffle.args) > 1 or any(k.arg in ("seed", None) for k in shuffle.keywords)


RULES = (
    Rule(
        name="shard-by-worker",
        severity="error",
        why="Phalanx hands out the rows of every batch itself, and TensorFlow's strategies shard "
        "too: of a worker's shard only its rows are read, and the rest is never seen.",
        remedy="Leave the shard out: give every worker the whole dataset, in global batches. Where "
        "that is too costly, use strategy.distribute_datasets_from_function.",
        find=_by_worker,
    ),
    Rule(
        name="unseeded-shuffle",
        severity="warning",
        why="Each worker shuffles in its own order, so shards overlap, and some samples are in "
        "none. (Under phalanx run all workers have the same seeds.)",
        remedy="Shard first and shuffle after that, or give shuffle a seed and "
        "reshuffle_each_iteration=False.",
        find=_unseeded,
    ),
)
