"""Models and optimizers outside the scope of the strategy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Site
from phalanx.diagnostics.lint.distributed_code import strategies_made
from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.import_names import last_part
from phalanx.diagnostics.lint.script import Script

_MODEL = re.compile(r"^keras\.(Sequential|Model|applications\.(\w+\.)?[A-Z]\w+)$")
_OPTIMIZER = re.compile(r"^keras\.optimizers\.[A-Z]\w+$")


def _model_outside(script: Script) -> Iterator[Spot]:
    own = set(_model_classes(script))
    for way in script.ways:
        made = next(strategies_made(way), None)
        models = [site for site in way if _MODEL.match(site.name) or site.name in own]
        # Next to a model in the scope, another is often one of its parts, or for one device.
        if made is None or any(site.scoped for site in models):
            continue
        for site in models:
            yield Spot(node=site.node, what=_words("The model", made))


def _optimizer_outside(script: Script) -> Iterator[Spot]:
    for way in script.ways:
        made = next(strategies_made(way), None)
        # phalanx.fit takes an optimizer from anywhere.
        if made is None or made.name == "phalanx.strategy":
            continue
        for site in way:
            if _OPTIMIZER.match(site.name) and not site.scoped:
                yield Spot(node=site.node, what=_words("The optimizer", made))


def _words(thing: str, made: Site) -> str:
    return f"{thing} is made outside the scope of the strategy of line {made.node.lineno}"


def _model_classes(script: Script) -> Iterator[str]:
    """Classes of the script that derive from a Keras model."""
    for node in script.nodes:
        if isinstance(node, ast.ClassDef):
            bases = [script.name(base) for base in node.bases]
            if any(
                _MODEL.match(base) or last_part(b) == "Model"
                for base, b in zip(bases, node.bases, strict=True)
            ):
                yield node.name


RULES = (
    Rule(
        name="model-outside-scope",
        severity="warning",
        why="Its variables belong to one device: outside phalanx run it trains there alone, or "
        "the first step is refused.",
        remedy="Build and compile it within `with strategy.scope():`. Under phalanx run the "
        "strategy is in force for the whole script.",
        find=_model_outside,
    ),
    Rule(
        name="optimizer-outside-scope",
        severity="warning",
        why="Its variables belong to one device: plain Keras 3 ends with "
        '"Mixing different tf.distribute.Strategy objects".',
        remedy="Make it within `with strategy.scope():`, where the model is compiled, or train "
        "with phalanx run or phalanx.fit, which take it as it is.",
        find=_optimizer_outside,
    ),
)
