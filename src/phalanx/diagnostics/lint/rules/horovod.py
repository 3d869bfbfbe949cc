"""Horovod's own optimizer next to Keras 3."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.script import Script

_REFUSED = ("backward_passes_per_step", "process_set")


def _optimizer(script: Script) -> Iterator[Spot]:
    if script.imports("tf_keras", "torch") or not script.imports("keras", "tensorflow"):
        return
    for site in script.sites:
        if site.name == "horovod.DistributedOptimizer":
            yield Spot(node=site.node, what="Horovod's DistributedOptimizer, with Keras 3")


def _refused(script: Script) -> Iterator[Spot]:
    for site in script.sites:
        if site.name == "horovod.DistributedOptimizer":
            for keyword in site.call.keywords:
                value = ast.unparse(keyword.value)
                sums = keyword.arg == "op" and script.name(keyword.value) == "horovod.Sum"
                if sums or (keyword.arg in _REFUSED and value not in ("1", "None")):
                    yield Spot(
                        node=keyword.value, what=f"DistributedOptimizer with {keyword.arg}={value}"
                    )
        elif site.name == "horovod.elastic.run":
            yield Spot(node=site.node, what="hvd.elastic.run")


RULES = (
    Rule(
        name="horovod-optimizer",
        severity="warning",
        why="Alone it reduces nothing under Keras 3: the processes diverge without a report. "
        "Horovod's callbacks of broadcast and learning rate crash.",
        remedy="Start the script with phalanx run --strategy horovod, which makes it right; or "
        "take Horovod out of it.",
        find=_optimizer,
    ),
    Rule(
        name="horovod-refused",
        severity="error",
        why="phalanx run --strategy horovod has no equal for it, and refuses it.",
        remedy="Leave it out; --max-restarts starts a worker group again, and "
        "keras's gradient_accumulation_steps takes the place of backward_passes_per_step.",
        find=_refused,
    ),
)
