"""Other Keras versions, TensorFlow 1, and sessions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.script import Script

_GRAPHS = re.compile(
    r"^tensorflow\.(compat\.v1\.(Session|InteractiveSession|placeholder|disable_eager_execution"
    r"|disable_v2_behavior|global_variables_initializer|train\.MonitoredTrainingSession)"
    r"|(Session|InteractiveSession|placeholder|global_variables_initializer))$"
    r"|^keras\.backend\.(set_session|get_session)$"
)


def _mixed(script: Script) -> Iterator[Spot]:
    if not script.imports("keras") and not _uses_keras(script):
        return
    for node, name in script.modules:
        # Keras 2, kept among TensorFlow's private modules.
        private = name.split(".")[:3] == ["tensorflow", "python", "keras"]
        if private or name.split(".")[0] == "tf_keras":
            yield Spot(node=node, what=f"`{ast.unparse(node)}` next to Keras 3")


def _legacy(script: Script) -> Iterator[Spot]:
    mixed = {spot.node for spot in _mixed(script)}
    for node, name in script.modules:
        if name.split(".")[0] == "tf_keras" and node not in mixed:
            yield Spot(node=node, what="tf_keras is Keras 2")
    for site in script.sites:
        words = [a.value for a in site.call.args if isinstance(a, ast.Constant)]
        if site.name == "environ[TF_USE_LEGACY_KERAS]" or (
            site.name == "os.environ.setdefault" and "TF_USE_LEGACY_KERAS" in words
        ):
            yield Spot(node=site.node, what="TF_USE_LEGACY_KERAS makes tf.keras Keras 2")


def _uses_keras(script: Script) -> bool:
    return any(site.name.startswith("keras.") for site in script.sites)


def _sessions(script: Script) -> Iterator[Spot]:
    for site in script.sites:
        if _GRAPHS.match(site.name):
            yield Spot(node=site.node, what=f"`{ast.unparse(site.call.func)}` is TensorFlow 1's")


def _clear_session(script: Script) -> Iterator[Spot]:
    for way in script.ways:
        set_for_good = False
        for site in way:
            if site.method == "experimental_set_strategy":
                set_for_good = True
            elif site.method == "clear_session" and set_for_good:
                yield Spot(node=site.node, what="clear_session after experimental_set_strategy")


RULES = (
    Rule(
        name="two-kerases",
        severity="error",
        why="Layers, optimizers and callbacks of one do not work in models of the other.",
        remedy="Import Keras 3 alone: `import keras`.",
        find=_mixed,
    ),
    Rule(
        name="tf-keras",
        severity="warning",
        why="Its fit runs as it is: the strategy is there, but none of what Phalanx promises.",
        remedy="Move to Keras 3: `import keras`. docs/coming-from/tf-keras.md shows how.",
        find=_legacy,
    ),
    Rule(
        name="tf1-session",
        severity="error",
        why="Sessions, placeholders and graph mode know neither Keras 3 nor today's strategies.",
        remedy="Leave it out: TensorFlow 2 runs at once. A GPU's memory is set by "
        "tf.config.experimental.set_memory_growth.",
        find=_sessions,
    ),
    Rule(
        name="clear-session",
        severity="warning",
        why="It drops the strategy: outside phalanx run, everything after it trains on one device "
        "in silence.",
        remedy="Set the strategy again after it, or leave clear_session out. Under phalanx run the "
        "strategy stays.",
        find=_clear_session,
    ),
)
