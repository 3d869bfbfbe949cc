"""Give one Keras optimizer clippers of ours, at the place where Keras clips.

`_clip_gradients` is called where accumulation and loss scaling are done with a gradient,
so the clippers see what Keras's own would see. It is replaced on the instance alone, and
works on one device without anything else of Phalanx.

Private names used: `Optimizer._clip_gradients`, `_backend_apply_gradients`, `_trainable_variables`,
`_distribution_strategy`, `_var_key`; `MultiOptimizer._var_to_optimizer_idx`; guarded by
tests/replicas/test_canaries.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient
from phalanx.gradients.clipper_chain import ClipperChain
from phalanx.gradients.step_context import current_replica_batch, current_step, step_scope

_RULES = "_phalanx_rules"
_STATE = "_phalanx_rule_state"


def innermost(optimizer: Any) -> Any:
    """The optimizer itself, or the one that a LossScaleOptimizer wraps."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizers among which a `MultiOptimizer` divides the variables; else none."""
    return list(getattr(optimizer, "optimizers", None) or [])


def optimizers_in(optimizer: Any) -> Iterator[Any]:
    """An optimizer, if any, and those that it wraps, the outermost first."""
    if optimizer is not None:
        yield optimizer
        for one in (getattr(optimizer, "inner_optimizer", None), *parts_of(optimizer)):
            yield from optimizers_in(one)


def _appliers(optimizer: Any, variables: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """The optimizers that update variables, and the places of the variables of each."""
    inner = innermost(optimizer)
    parts = parts_of(inner)
    if not parts:
        return [(inner, list(range(len(variables))))]
    numbers = [inner._var_to_optimizer_idx[inner._var_key(v)] for v in variables]
    return [
        (part, [i for i, number in enumerate(numbers) if number == j])
        for j, part in enumerate(parts)
    ]


_ADDING = (keras.optimizers.SGD, keras.optimizers.Lion)
"""The optimizers of Keras whose `update_step` is linear in the gradient or makes it dense before it
is anything else. The others square the rows of `tf.IndexedSlices` one by one."""

_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def adds_rows(optimizer: Any) -> bool:
    """Whether equal rows of a sparse gradient may be added up before `optimizer` has them."""
    inner = innermost(optimizer)
    clips = any(getattr(inner, name) is not None for name in _CLIPPING)
    return type(inner) in _ADDING and not clips and clippers_of(inner) is None


def clippers_of(optimizer: Any) -> ClipperChain | None:
    """The rules that `attach_clippers` gave, or None."""
    rules: ClipperChain | None = vars(innermost(optimizer)).get(_RULES)
    return rules


def attach_clippers(optimizer: Any, rules: ClipperChain) -> None:
    """Let `optimizer` clip by `rules`, before what it clips on its own."""
    inner = innermost(optimizer)
    own = vars(inner)
    own[_RULES] = rules
    state = own[_STATE] = {}
    for name, shape in rules.state_shapes().items():
        with inner._distribution_strategy.scope():
            state[name] = inner.add_variable(shape, dtype="float32", name=name)

    def checked_build(variables: Any) -> None:
        rules.check([v.path for v in variables])
        type(inner).build(inner, variables)

    def clip(gradients: Sequence[Gradient]) -> Any:
        variables = current_step().clipped_variables
        if _adds_up_nothing():
            gradients = rules.clip("before", gradients, variables, state)
        clipped = rules.clip("after", gradients, variables, state)
        return type(inner)._clip_gradients(inner, clipped)

    def backend_apply(gradients: Any, variables: Any) -> Any:
        with step_scope(clipped_variables=list(variables)):
            return type(inner)._backend_apply_gradients(inner, gradients, variables)

    own["build"] = checked_build
    own["_backend_apply_gradients"] = backend_apply
    own["_clip_gradients"] = clip
    if inner.built:
        rules.check([v.path for v in inner._trainable_variables])


def clip_local(
    optimizer: Any, variables: Sequence[Any]
) -> Callable[[Sequence[Gradient]], list[Gradient]] | None:
    """The clippers for a replica's own gradient, None where there are none."""
    clipping = [
        (rules, vars(inner)[_STATE], places)
        for inner, places in _appliers(optimizer, variables)
        if (rules := clippers_of(inner)) and any(one.when == "before" for one in rules.clippers)
    ]
    if not clipping or _adds_up_nothing():
        return None

    def clip(gradients: Sequence[Gradient]) -> list[Gradient]:
        clipped = list(gradients)
        for rules, state, places in clipping:
            own, known = [clipped[i] for i in places], [variables[i] for i in places]
            for i, one in zip(places, rules.clip("before", own, known, state), strict=True):
                clipped[i] = one
        return clipped

    return clip


def local_clipper_state(optimizer: Any) -> list[Any]:
    """The variables in which clippers with `when="before"` remember a replica's own gradients."""
    found: list[Any] = []
    for inner in optimizers_in(optimizer):
        if rules := vars(inner).get(_RULES):
            own = [f"clipper_{i}_" for i, one in enumerate(rules.clippers) if one.when == "before"]
            state = vars(inner)[_STATE]
            found += [v for name, v in state.items() if name.startswith(tuple(own))]
    return found


def clip_total(
    optimizer: Any, total: Sequence[Gradient], variables: Sequence[Any]
) -> Sequence[Gradient]:
    """What the optimizer makes of an unscaled total gradient when it clips, for observers.

    Where it accumulates gradients it clips their mean; a single one is given back as is.
    """
    clipped: list[Gradient] = []
    for inner, places in _appliers(optimizer, variables):
        own, known = [total[i] for i in places], [variables[i] for i in places]
        clipped += _clip_own_total(inner, own, known)
    return clipped


def _clip_own_total(
    inner: Any, total: Sequence[Gradient], variables: Sequence[Any]
) -> Sequence[Gradient]:
    if inner.gradient_accumulation_steps:
        return total
    present = [(g, v) for g, v in zip(total, variables, strict=True) if g is not None]
    gradients, known = [g for g, _ in present], [v for _, v in present]
    rules = clippers_of(inner)
    if rules is not None:
        state = vars(inner)[_STATE]
        if _adds_up_nothing():
            gradients = rules.clip("before", gradients, known, state, keep_state=True)
        gradients = rules.clip("after", gradients, known, state, keep_state=True)
    clipped: Sequence[Gradient] = type(inner)._clip_gradients(inner, gradients)
    return clipped


def _adds_up_nothing() -> bool:
    """Whether a replica's own gradient is the total: it is alone, or its step is a local one."""
    share = current_replica_batch()
    alone = tf.distribute.get_strategy().num_replicas_in_sync == 1
    return alone or (share is not None and share.is_local)
