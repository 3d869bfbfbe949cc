"""Where an error came from, said on the error itself: notes that its report begins with."""

from __future__ import annotations


class ErrorContext(str):
    """A note on an exception that says in which worker, replica and step it was raised."""

    __slots__ = ()


class InReplica(str):
    """A note that says in which replica, until its location is known."""

    replica: int

    def __new__(cls, replica: int) -> InReplica:
        """Note `replica`, counted over all workers."""
        note = super().__new__(cls, f"in replica {replica}")
        note.replica = replica
        return note


def error_context_of(error: BaseException) -> ErrorContext | None:
    """The note on `error`, if there is one."""
    notes = getattr(error, "__notes__", ())
    return next((note for note in notes if isinstance(note, ErrorContext)), None)


def take_replica(error: BaseException) -> int | None:
    """The replica that was noted on `error`, and is now noted no more."""
    notes = getattr(error, "__notes__", [])
    found = [note for note in notes if isinstance(note, InReplica)]
    for note in found:
        notes.remove(note)
    return found[0].replica if found else None
