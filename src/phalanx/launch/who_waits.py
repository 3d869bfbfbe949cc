"""Who waits for whom, in words that the launcher and `phalanx debug where` share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from phalanx.launch.whereabouts import LAST_MEETING, Whereabouts

_NOBODY = "no worker has begun anything new"
_FIRST_DIMENSION = re.compile(r"\[[^,\]]+")


def who_waits_for_whom(found: Mapping[int, Whereabouts], now: float) -> str:
    """One line: who did not come, what it does and for how long, and that the others wait."""
    late = [rank for rank, each in sorted(found.items()) if each.is_late]
    late = late or _behind_in_input(found)
    if not late or len(late) == len(found):
        longest = max((_seconds(each, now) for each in found.values()), default=0.0)
        parted = _parted(found) if not late else None
        return parted or f"{_NOBODY} for {longest:.0f} s"
    others = [each for rank, each in found.items() if rank not in late]
    verb = "waits" if len(others) == 1 else "wait"
    who = "the other" if len(others) == 1 else "the others"
    told = ", ".join(_late(rank, found[rank], now) for rank in late)
    return f"{told}; {who} {verb}{_place_of_all(others)}"


def who_was_where(found: Mapping[int, Whereabouts], cause: int) -> str:
    """One line about a run in which worker `cause` failed first: who had waited for whom.

    Where nobody stands out, it is where that worker was.
    """
    before = {rank: replace(each, gone=None) for rank, each in found.items()}
    until = max((each.until or 0.0 for each in found.values()), default=0.0)
    told = who_waits_for_whom(before, until)
    if not told.startswith(_NOBODY):
        return told
    each = found[cause]
    batch = f", its last batch {each.position.batch}" if each.position.batch else ""
    return f"it was {each.doing}{each.position.after}{batch}"


def lines_about(found: Mapping[int, Whereabouts], now: float) -> list[str]:
    """A line for each worker."""
    return [f"Worker {rank}: {line_about(each, now)}" for rank, each in sorted(found.items())]


def line_about(each: Whereabouts, now: float) -> str:
    """Where one worker is, for how long, and at which line."""
    epoch = each.position.epoch
    where = "" if epoch is None else f" of epoch {epoch}"
    place = f"; {each.place}" if each.place else ""
    what = f"{each.doing}{each.position.after}{where}"
    if each.gone is not None:
        return f"{each.gone}; it was {what}."
    return f"{what} for {_seconds(each, now):.0f} s{place}."


def batches_that_differ(found: Mapping[int, Whereabouts]) -> list[str]:
    """A line where the workers' last batches are of different form; none where they are not."""
    forms = {rank: form_of(each.position.batch) for rank, each in sorted(found.items())}
    kinds = list(dict.fromkeys(form for form in forms.values() if form))
    if len(kinds) < 2:
        return []
    by_form = [([r for r, form in forms.items() if form == kind], kind) for kind in kinds]
    told = "; ".join(f"{_workers(ranks)}: {kind}" for ranks, kind in by_form)
    return [f"Their last batches differ: {told}."]


def form_of(batch: str) -> str:
    """A batch's names, shapes and dtypes without the number of samples, which may differ."""
    return _FIRST_DIMENSION.sub("[samples", batch)


def _late(rank: int, each: Whereabouts, now: float) -> str:
    seconds = f"for {_seconds(each, now):.0f} s"
    if each.gone is not None:
        return f"worker {rank} {each.gone}, {each.doing}{each.position.after}"
    if each.position.waits_in == LAST_MEETING:
        return f"worker {rank} has come to its script's end{each.position.after} {seconds}"
    if _was_training(each) or (each.position.arrived is not None):
        doing = each.doing if each.is_late else "waiting in next(iterator)"
        return f"worker {rank} never reached {each.position.next_step}: {doing} {seconds}"
    return f"worker {rank} is {each.doing}{each.position.after} {seconds}"


def _behind_in_input(found: Mapping[int, Whereabouts]) -> list[int]:
    """Of calls that train several steps: who waits for a batch that the others have."""
    arrived = {rank: each.position.arrived for rank, each in sorted(found.items())}
    known = {rank: step for rank, step in arrived.items() if step is not None}
    if len(known) < len(found):
        return []
    return [rank for rank, step in known.items() if step < max(known.values())]


def _parted(found: Mapping[int, Whereabouts]) -> str | None:
    """All wait, and not in one place: they have parted."""
    places: dict[tuple[str, int | None], list[int]] = {}
    for rank, each in sorted(found.items()):
        if each.position.waits is None:
            return None
        key = (_place(each), each.position.step)
        places.setdefault(key, []).append(rank)
    if len(places) < 2:
        return None
    told = "; ".join(
        f"{_workers(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in the {place}"
        f"{found[ranks[0]].position.after}"
        for (place, _), ranks in places.items()
    )
    steps = {rank: each.position.step or 0 for rank, each in found.items()}
    behind = [rank for rank, step in sorted(steps.items()) if step < max(steps.values())]
    if behind:
        return f"{told}: {_workers(behind)} left out a step, or took one that the others left out"
    return f"{told}: they have parted"


def _place(each: Whereabouts) -> str:
    if each.position.waits_in is not None:
        return each.position.waits_in
    return "all-reduce" if each.position.phase == "compute" else each.position.phase


def _place_of_all(others: Sequence[Whereabouts]) -> str:
    places = {_place(each) for each in others}
    is_collective = all(
        each.position.waits_in is not None or each.position.phase == "compute" for each in others
    )
    return f" in the {places.pop()}" if len(places) == 1 and is_collective else ""


def _workers(ranks: Sequence[int]) -> str:
    return f"worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _seconds(each: Whereabouts, now: float) -> float:
    return max(0.0, (now if each.until is None else each.until) - each.position.since)


def _was_training(each: Whereabouts) -> bool:
    return each.position.phase not in ("start", "idle", "validation")
