"""Finding what to go on from: the newest whole checkpoint, the same on every worker."""

from __future__ import annotations

from contextlib import suppress

from phalanx.checkpoint.folder import Folder
from phalanx.checkpoint.patience import Patience
from phalanx.checkpoint.reading import Loaded, newest, read
from phalanx.errors import NoCheckpointError, OptionError
from phalanx.training.prepare import Stage, chiefs_number


def newest_for_all(stage: Stage, folder: Folder, patience: Patience) -> Loaded | None:
    """The newest whole checkpoint, None where there is none; all workers must ask together.

    The chief looks for it, so that a damaged one is passed over by all.

    Raises:
        NewerCheckpointError: the newest was written by a newer Phalanx.
        DamagedCheckpointError: another worker reads something else there than the chief.
    """
    found: Loaded | None = None
    if stage.place.is_chief:
        with suppress(NoCheckpointError):
            found = patience.try_to(f"read {folder}", lambda: newest(folder))
    step = chiefs_number(stage, -1 if found is None else found.manifest.step)
    if step < 0:
        return None
    return found or patience.try_to(f"read {folder}", lambda: read(folder, step))


def assert_of_a_fit(found: Loaded, folder: Folder) -> None:
    """Refuse what `phalanx.checkpoint.save` wrote, which has no place in any data."""
    if "position" not in found.manifest.state:
        raise OptionError(
            f"{folder} holds the checkpoint of step {found.manifest.step} by "
            "phalanx.checkpoint.save, which a fit cannot go on from. Give Checkpoint a directory "
            "of its own."
        )


def assert_wanted(found: Loaded, folder: Folder, *, resume: bool) -> None:
    """Refuse to go on where the user has asked not to."""
    if not resume:
        raise OptionError(
            f"Checkpoint was given resume=False, but {folder} holds the checkpoint of step "
            f"{found.manifest.step}. Remove it, give another directory, or let it resume."
        )


def assert_behind(found: Loaded, folder: Folder, step: int) -> None:
    """Refuse a second training beside one that has ended in this process."""
    if step < found.manifest.step:
        raise OptionError(
            f"Checkpoint was given {folder}, where a fit before this one has come to step "
            f"{found.manifest.step}; this one begins at step {step}. Give each training a "
            "directory of its own."
        )


def in_words(found: Loaded, folder: Folder) -> str:
    """What was found, for the user."""
    manifest = found.manifest
    if manifest.state["complete"]:
        return f"{folder} holds the end of this training, at step {manifest.step}"
    return f"going on from step {manifest.step} (epoch {manifest.epoch + 1}) of {folder}"
