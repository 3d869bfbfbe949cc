"""What all workers must do together, done by some."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Site
from phalanx.diagnostics.lint.distributed_code import (
    has_parameter_servers,
    is_about_rank,
    on_one_rank,
    shares_as_horovod,
)
from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.script import Script

_TRAINS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch")
_HOROVOD = (
    "allreduce", "grouped_allreduce", "allgather", "broadcast", "broadcast_variables",
    "broadcast_object", "broadcast_global_variables", "alltoall", "reducescatter", "barrier",
    "allgather_object", "callbacks.BroadcastGlobalVariablesCallback",
    "callbacks.MetricAverageCallback",
)  # fmt: skip
_TOGETHER = (
    "all_reduce",
    "all_gather",
    "any_worker",
    "all_workers",
    "experimental_distribute_dataset",
)
_DECIDES = (
    "EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler", "TerminateOnNaN",
    "BackupAndRestore", "SwapEMAWeights",
)  # fmt: skip


def _fit(script: Script) -> Iterator[Spot]:
    # Horovod's evaluate and predict are each process's own.
    alone = _TRAINS[:1] if shares_as_horovod(script) else _TRAINS
    for site, test in _some_ranks(script):
        of_phalanx = site.name.startswith("phalanx.")
        if site.method in alone and (site.name.startswith("?.") or of_phalanx):
            yield Spot(node=site.node, what=f"{site.method} is called under `{test}`")


def _collective(script: Script) -> Iterator[Spot]:
    for site, test in _some_ranks(script):
        called = site.name.removeprefix("horovod.")
        if called in _HOROVOD or site.name in {f"?.{word}" for word in _TOGETHER}:
            yield Spot(node=site.node, what=f"{called.split('.')[-1]} is called under `{test}`")
        elif site.name == "?.run" and _receiver(site) == "strategy":
            yield Spot(node=site.node, what=f"strategy.run is called under `{test}`")


def _callback(script: Script) -> Iterator[Spot]:
    for site, test in _some_ranks(script):
        if site.name.startswith("keras.callbacks.") and site.method in _DECIDES:
            yield Spot(node=site.node, what=f"{site.method} is given under `{test}`")


def _verbose(script: Script) -> Iterator[Spot]:
    for site in script.sites:
        for keyword in site.call.keywords if site.method in _TRAINS else ():
            values = [keyword.value]
            if isinstance(keyword.value, ast.Name):
                values = script.values.get(keyword.value.id, [])
            if keyword.arg == "verbose" and any(is_about_rank(script, v) for v in values):
                yield Spot(node=keyword.value, what="verbose depends on the rank")


def _some_ranks(script: Script) -> Iterator[tuple[Site, str]]:
    """Calls that not all ranks make, and the condition."""
    if has_parameter_servers(script):
        return
    for site in script.sites:
        guard = on_one_rank(script, site)
        if guard is not None:
            yield site, ast.unparse(guard.test)


def _receiver(site: Site) -> str:
    func = site.call.func
    name = ast.unparse(func.value) if isinstance(func, ast.Attribute) else ""
    return "strategy" if name.lower().endswith("strategy") else name


_WAIT = "The workers that do it wait for those that do not, until the run is ended."

RULES = (
    Rule(
        name="fit-on-some-ranks",
        severity="error",
        why=_WAIT,
        remedy="Call it on every worker, and put only what follows, such as printing and saving, "
        "under the condition.",
        find=_fit,
    ),
    Rule(
        name="collective-on-some-ranks",
        severity="error",
        why=_WAIT,
        remedy="Let every worker make the call, equally often, and put what is done with its "
        "result under the condition.",
        find=_collective,
    ),
    Rule(
        name="callback-on-some-ranks",
        severity="warning",
        why="It changes the training. Under plain Keras the others continue without it, and "
        "wait for one that has stopped; Phalanx synchronizes most decisions.",
        remedy="Give it to every worker: all see the same logs and decide the same. Callbacks that "
        "only save may stay with the chief.",
        find=_callback,
    ),
    Rule(
        name="verbose-by-rank",
        severity="hint",
        why="Under Phalanx only the chief shows progress anyway.",
        remedy="Nothing; it may go.",
        find=_verbose,
    ),
)
