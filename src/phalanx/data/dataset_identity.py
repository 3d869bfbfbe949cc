"""Which data a training reads: a checkpoint records it, and a resumed training compares it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from phalanx.data.iterator_position import DataPosition

_CALLED = {
    "samples": "samples",
    "batch_size": "global batch size",
    "batches": "batches in a pass",
    "order": "order",
    "fingerprint": "fingerprint",
}


@dataclass(frozen=True, kw_only=True)
class DatasetIdentity:
    """What decides which samples a global batch holds; None where it is unknown.

    Attributes:
        samples: samples in one pass.
        batch_size: samples in every global batch but the last.
        batches: global batches in one pass.
        order: how the samples are ordered.
        fingerprint: a checksum of the samples, or of what they follow from.
    """

    samples: int | None = None
    batch_size: int | None = None
    batches: int | None = None
    order: str | None = None
    fingerprint: int | None = None

    @classmethod
    def of(cls, source: Any) -> DatasetIdentity:
        """That of a `phalanx.data.batches.BatchSource`."""
        return cls(
            samples=source.num_samples,
            batch_size=source.full_batch_size,
            batches=source.num_batches,
            order=source.order,
            fingerprint=source.fingerprint,
        )

    @classmethod
    def from_json(cls, document: Any) -> DatasetIdentity:
        """From a checkpoint's manifest; one that knows nothing for a checkpoint without it."""
        held = document if isinstance(document, dict) else {}
        return cls(**{name: held.get(name) for name in _CALLED})

    def to_json(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)

    def differences(self, saved: DatasetIdentity) -> list[str]:
        """What differs from `saved`, with both values, where both are known."""
        found = []
        for name, called in _CALLED.items():
            before, now = getattr(saved, name), getattr(self, name)
            if None not in (before, now) and before != now:
                if name == "fingerprint":
                    before, now = f"{before:08x}", f"{now:08x}"
                found.append(f"{called} was {before}, is {now}")
        return found


def translate(
    position: DataPosition,
    saved: DatasetIdentity,
    now: DatasetIdentity,
    *,
    steps_per_epoch: int | None = None,
) -> DataPosition:
    """The position in other data after as many samples of the pass under way.

    Where that is in the middle of a batch, the position is the start of this batch: a sample may
    come twice in the pass, and none is left out.

    Args:
        position: in the data of the checkpoint.
        saved: that data.
        now: the data that training continues with.
        steps_per_epoch: what `fit` was given; the steps of an epoch then do not follow from the
            data.
    """
    before, after = saved.batch_size or 1, now.batch_size or saved.batch_size or 1

    def moved(batches: int) -> int:
        there = batches * before // after
        return there if now.batches is None else min(there, now.batches)

    if saved.batches and now.batches:
        passes, within = divmod(position.trained, saved.batches)
        trained = passes * now.batches + moved(within)
        is_end_of_pass = within == 0 and position.batch == saved.batches
        batch = now.batches if is_end_of_pass else moved(position.batch)
    else:
        trained, batch = position.trained * before // after, moved(position.batch)
    return replace(
        position,
        trained=trained,
        batch=position.batch if steps_per_epoch else batch,
        taken=None if position.taken is None else moved(position.taken),
        learned=None,
    )
