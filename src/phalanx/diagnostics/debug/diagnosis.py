"""Why an operation gave what is not finite: from its kind and the numbers that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phalanx.diagnostics.debug.nonfinite_rows import OpCall, Range, Wrong

Kind = Literal[
    "data", "weights", "float16", "division", "logarithm", "root", "explosion", "sum", "unknown"
]

LOGARITHMS = {"Log": 0.0, "Log1p": -1.0, "Xlogy": 0.0, "Xlog1py": -1.0}
"""By type, what an argument must be above."""
ROOTS = {"Sqrt", "Rsqrt", "SqrtGrad", "RsqrtGrad"}
DIVISIONS = {"RealDiv", "Div", "Xdivy", "Mod", "FloorMod", "FloorDiv"}
RECIPROCALS = {"Reciprocal", "Inv", "ReciprocalGrad", "InvGrad"}
EXPONENTIALS = {"Exp", "Expm1", "Sinh", "Cosh", "Pow", "Square", "Softplus"}
_SMALL = ("float16", "bfloat16")
_EXPLODES_BY = 1e3


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why it went wrong.

    Attributes:
        kind: the family.
        summary: what was found, the numbers included.
        remedy: what to do.
    """

    kind: Kind
    summary: str
    remedy: str


def cause_of(wrong: Wrong, calls: Sequence[OpCall], *, largest_in_float32: float | None) -> Cause:
    """Why `wrong` is wrong.

    Args:
        wrong: the operation.
        calls: the layers' calls, in order.
        largest_in_float32: the largest absolute value that its layer gives where all computes in
            float32 and stays finite; None where it does not, or was not tried.
    """
    if largest_in_float32 is not None and wrong.output.dtype.name in _SMALL:
        return _half(wrong, largest_in_float32)
    bad = _bad_arguments(wrong)
    if bad is not None:
        return bad
    return _overflow(wrong, calls)


def _half(wrong: Wrong, largest: float) -> Cause:
    dtype = wrong.output.dtype.name
    limit = 65504.0 if dtype == "float16" else 3.39e38
    zeros = _bad_arguments(wrong)
    summary = f"in float32 the same step is finite: {wrong.layer} gives up to {largest:.4g} there"
    if largest > limit:
        summary += f", and {dtype} ends at {limit:.6g}"
    elif zeros is not None:
        summary += f"; in {dtype} a small number has become 0: {zeros.summary}"
    return Cause(
        kind="float16",
        summary=summary,
        remedy=(
            'give that layer dtype="float32" (an output layer, a softmax or a loss above all), use '
            "mixed_bfloat16, normalise before it, or make its epsilon 1e-4 or more"
        ),
    )


def _bad_arguments(wrong: Wrong) -> Cause | None:
    kind, inputs = wrong.operation, wrong.inputs
    if not inputs:
        return None
    if kind in LOGARITHMS:
        least = LOGARITHMS[kind]
        argument = inputs[-1]
        return Cause(
            kind="logarithm",
            summary=f"the logarithm of {_count(argument <= least, argument)} that are not above "
            f"{least:g}, the least {Range.of(argument).least:.4g}",
            remedy="keep the argument above 0: ops.log(ops.maximum(x, 1e-7)), ops.log1p, a "
            "log_softmax, or a loss with from_logits=True",
        )
    if kind in ROOTS:
        is_bad = inputs[0] <= 0 if kind != "Sqrt" else inputs[0] < 0
        where = "the gradient of a root" if kind.endswith("Grad") else "the root"
        return Cause(
            kind="root",
            summary=f"{where} of {_count(is_bad, inputs[0])} that are 0 or below",
            remedy="add a small number under the root: ops.sqrt(x + 1e-7); at 0 the gradient of a "
            "root is infinite",
        )
    if kind == "Pow":
        return _bad_power(wrong)
    divisor = inputs[1] if kind in DIVISIONS and len(inputs) > 1 else None
    if kind in RECIPROCALS:
        divisor = inputs[0]
    return None if divisor is None else _by_zero(divisor)


def _bad_power(wrong: Wrong) -> Cause | None:
    base, bad = wrong.inputs[0], ~np.isfinite(wrong.output)
    if ((base == 0) & bad).any():
        return _by_zero(base)
    if ((base < 0) & np.isnan(wrong.output)).any():
        return Cause(
            kind="root",
            summary=f"a power that is no whole number of {_count(base < 0, base)} below 0",
            remedy="take the power of the absolute value, or keep the base above 0",
        )
    return None


def _by_zero(divisor: np.ndarray) -> Cause | None:
    if not (divisor == 0).any():
        return None
    return Cause(
        kind="division",
        summary=f"a division by {_count(divisor == 0, divisor)} that are 0",
        remedy="add a small number to the divisor, or use ops.divide_no_nan",
    )


def _overflow(wrong: Wrong, calls: Sequence[OpCall]) -> Cause:
    given = max((Range.of(a).largest for a in wrong.inputs), default=0.0)
    growth = growth_of(calls) or [("the input", given)]
    dtype = wrong.output.dtype.name
    summary = f"{wrong.operation} of numbers up to {given:.4g} overflows {dtype}"
    (first, small), (last, large) = growth[0], max(growth, key=lambda pair: pair[1])
    grows = large > _EXPLODES_BY * max(small, 1e-30)
    if grows:
        summary += f"; activations grow from {small:.4g} after {first} to {large:.4g} after {last}"
    if not (grows or wrong.operation in EXPONENTIALS or given > 1e6):
        if not np.isinf(wrong.output).any():
            summary = f"{wrong.operation} of numbers up to {given:.4g} gives no number in {dtype}"
        return Cause(
            kind="unknown",
            summary=summary,
            remedy="look at the input's range, and at what this layer does with it",
        )
    return Cause(
        kind="explosion",
        summary=summary,
        remedy="normalise (LayerNormalization), lower the learning rate or the initial weights, "
        "clip with global_clipnorm, or bound what goes into an exponential",
    )


def growth_of(calls: Sequence[OpCall]) -> list[tuple[str, float]]:
    """The largest absolute value after each layer that has no layer inside, in order."""
    grown: dict[str, float] = {}
    for call in calls:
        is_outer = any(name.startswith(f"{call.name}/") for name in grown)
        if call.outputs and not is_outer:
            grown[call.name] = max(each.largest for each in call.outputs)
    return list(grown.items())


def _count(is_bad: np.ndarray, whole: np.ndarray) -> str:
    return f"{int(is_bad.sum())} of {whole.size} numbers"
