"""Different clippers for different layers, by pattern."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.errors import ConfigurationError
from phalanx.gradients.clippers.base import ClipInputs, Clipper, ClipResult, global_norm


@dataclass(frozen=True, kw_only=True)
class PerLayer(Clipper):
    """Gives each variable to the clipper of the first pattern that matches its path.

    Attributes:
        rules: (pattern, clipper or None) in order; None leaves those variables alone.
        otherwise: the clipper of all others, or None.
    """

    rules: tuple[tuple[str, Clipper | None], ...]
    otherwise: Clipper | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rules:
            raise ConfigurationError("per_layer needs at least one pattern; found none.")
        for clipper in self._groups:
            if clipper is None:
                continue
            if not isinstance(clipper, Clipper) or isinstance(clipper, PerLayer):
                raise ConfigurationError(
                    f"per_layer takes plain clippers or None; found {clipper!r}."
                )
            if clipper.when != self.when:
                raise ConfigurationError(
                    f"All clippers of a per_layer act {self.when!r} the reduction, like the first; "
                    f"found {clipper!r}. Use a per_layer for each."
                )

    @property
    def _groups(self) -> list[Clipper | None]:
        return [*(clipper for _, clipper in self.rules), self.otherwise]

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """What the groups' clippers remember."""
        return {
            f"{i}_{name}": shape
            for i, clipper in enumerate(self._groups)
            if clipper is not None
            for name, shape in clipper.state_shapes().items()
        }

    def check(self, paths: Sequence[str]) -> None:
        """Refuse a pattern that matches no variable."""
        for pattern, _ in self.rules:
            if not any(_matches(pattern, path) for path in paths):
                raise ConfigurationError(
                    f"per_layer: no variable matches the pattern {pattern!r}. The variables are "
                    f"{', '.join(paths)}."
                )

    def clip(self, inputs: ClipInputs) -> ClipResult:
        """See `Clipper.clip`; each group is clipped apart from the others."""
        clipped, new_state = list(inputs.gradients), dict(inputs.state)
        for i, clipper in enumerate(self._groups):
            members = [k for k, path in enumerate(inputs.paths) if self._group_of(path) == i]
            if clipper is None or not members:
                continue
            result = clipper.clip(
                ClipInputs(
                    gradients=[inputs.gradients[k] for k in members],
                    weights=[inputs.weights[k] for k in members],
                    paths=[inputs.paths[k] for k in members],
                    state={name: inputs.state[f"{i}_{name}"] for name in clipper.state_shapes()},
                )
            )
            for k, gradient in zip(members, result.gradients, strict=True):
                clipped[k] = gradient
            new_state.update({f"{i}_{name}": value for name, value in result.state.items()})
        return ClipResult(gradients=clipped, norm=global_norm(inputs.gradients), state=new_state)

    def _group_of(self, path: str) -> int:
        matching = (i for i, (pattern, _) in enumerate(self.rules) if _matches(pattern, path))
        return next(matching, len(self.rules))


def _matches(pattern: str, path: str) -> bool:
    layer = path.rpartition("/")[0]
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(layer, pattern)


def per_layer(rules: Mapping[str, Clipper | None], otherwise: Clipper | None = None) -> PerLayer:
    """Clip variables by the first pattern that matches.

    Args:
        rules: patterns ("*/embedding*", "sequential/dense/kernel") of variable or layer
            paths, and the clipper of each group; None leaves a group alone.
        otherwise: the clipper of the variables that no pattern matches.

    Raises:
        ConfigurationError: no pattern, a nested per_layer, or clippers that act at different times.
            A pattern that matches nothing is refused once the variables are known.
    """
    if not isinstance(rules, Mapping) or not all(isinstance(p, str) for p in rules):
        raise ConfigurationError(
            f'per_layer takes a mapping such as {{"*/dense*": clip_by_norm(1.0)}}; found {rules!r}.'
        )
    chosen = [c for c in [*rules.values(), otherwise] if isinstance(c, Clipper)]
    when = chosen[0].when if chosen else "after"
    return PerLayer(rules=tuple(rules.items()), otherwise=otherwise, when=when)
