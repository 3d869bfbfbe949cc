"""What happens to a total gradient before it is applied: the user's clippers, in order.

Rules belong to one optimizer. What a clipper remembers (a running window of norms) lives
in variables of that optimizer, so it is saved and restored with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.gradients.all_reduce import Gradient
from phalanx.gradients.clippers import ClipInputs, Clipper

OnNonfinite = Literal["raise", "skip", "zero", "ignore"]
ON_NONFINITE: tuple[OnNonfinite, ...] = ("raise", "skip", "zero", "ignore")


@dataclass(frozen=True, kw_only=True)
class ClipperChain:
    """The clippers of one optimizer, and what it does when a gradient is not finite.

    Attributes:
        clippers: applied one after the other, those with `when="before"` to each
            replica's own gradient, the others to the total.
        on_nonfinite: "raise" ends the training and names variable, step and workers;
            "skip" leaves the step out and counts it; "zero" takes NaN and infinite
            entries as 0; "ignore" does what Keras does; None is "raise" under `fit`,
            "ignore" in a loop of one's own.
    """

    clippers: tuple[Clipper, ...] = ()
    on_nonfinite: OnNonfinite | None = None

    def __post_init__(self) -> None:
        for clipper in self.clippers:
            if not isinstance(clipper, Clipper):
                raise ConfigurationError(
                    f"Asked to clip by {clipper!r}, which is no clipper. Use those of "
                    "phalanx.clip, such as phalanx.clip.clip_by_global_norm(1.0)."
                )
        if self.on_nonfinite is not None and self.on_nonfinite not in ON_NONFINITE:
            raise ConfigurationError(
                f"on_nonfinite must be one of {', '.join(ON_NONFINITE)}; found "
                f"{self.on_nonfinite!r}."
            )

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every float32 variable that the clippers need."""
        return {
            f"clipper_{i}_{name}": shape
            for i, clipper in enumerate(self.clippers)
            for name, shape in clipper.state_shapes().items()
        }

    def check(self, paths: Sequence[str]) -> None:
        """Refuse patterns that no variable matches, now that the variables are known."""
        for clipper in self.clippers:
            clipper.check(paths)

    def clip(
        self,
        when: Literal["before", "after"],
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        state: dict[str, Any],
        *,
        keep_state: bool = False,
    ) -> list[Gradient]:
        """Run the clippers of one kind.

        Args:
            when: the kind.
            gradients: one per variable, none of them None.
            variables: the variables.
            state: what the clippers remember, as variables, which are assigned.
            keep_state: only look, and leave `state` as it is.
        """
        clipped = list(gradients)
        paths = [getattr(v, "path", v.name) for v in variables]
        for i, clipper in enumerate(self.clippers):
            if clipper.when != when:
                continue
            own = {name: f"clipper_{i}_{name}" for name in clipper.state_shapes()}
            weights = [tf.convert_to_tensor(v) for v in variables]
            held = {name: tf.convert_to_tensor(state[key]) for name, key in own.items()}
            inputs = ClipInputs(gradients=clipped, weights=weights, paths=paths, state=held)
            result = clipper.clip(inputs)
            clipped = list(result.gradients)
            if not keep_state:
                for name, key in own.items():
                    state[key].assign(result.state[name])
        return clipped
