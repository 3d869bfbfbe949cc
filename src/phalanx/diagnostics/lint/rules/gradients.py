"""Gradients asked of things that have none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.script import Script

_ASKED = ("gradient", "gradients", "grad", "grads")
_VARIABLES = (
    "kernel",
    "bias",
    "gamma",
    "beta",
    "embeddings",
    "recurrent_kernel",
    "depthwise_kernel",
)
_LISTS = ("weights", "trainable_weights", "trainable_variables", "variables")
_GONE = ("?.get_gradients", "keras.backend.gradients")


def _of_a_variable(script: Script) -> Iterator[Spot]:
    loops = set(_loop_names(script))
    for node in script.nodes:
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _ASKED
            and _is_variable(node.value, loops)
        ):
            yield Spot(node=node, what=f"`{ast.unparse(node)}`: there is no such thing")
    for site in script.sites:
        if site.name in _GONE:
            called = ast.unparse(site.call.func)
            yield Spot(node=site.node, what=f"`{called}`: Keras 3 has no such function")
        for keyword in site.call.keywords if site.name == "keras.callbacks.TensorBoard" else ():
            if keyword.arg == "write_grads":
                yield Spot(node=keyword.value, what="`write_grads`: Keras 3 has no such option")


def _is_variable(node: ast.expr, loops: set[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _VARIABLES
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr in _LISTS
    return isinstance(node, ast.Name) and node.id in loops


def _loop_names(script: Script) -> Iterator[str]:
    """Names that refer to a variable of a model, since a loop goes through those."""
    for node in script.nodes:
        if isinstance(node, (ast.For, ast.comprehension)):
            over = node.iter
            if isinstance(over, ast.Call) and over.args:  # enumerate(model.weights)
                over = over.args[0]
            if isinstance(over, ast.Attribute) and over.attr in _LISTS:
                target = node.target
                last = target.elts[-1] if isinstance(target, ast.Tuple) else target
                if isinstance(last, ast.Name):
                    yield last.id


RULES = (
    Rule(
        name="no-such-gradient",
        severity="error",
        why="TensorFlow keeps no gradient with a variable, so this ends in an AttributeError or "
        "a TypeError.",
        remedy="Give fit a phalanx.callbacks.GradientLogger(); in a loop of your own, take what "
        "tape.gradient(loss, variables) returns.",
        find=_of_a_variable,
    ),
)
