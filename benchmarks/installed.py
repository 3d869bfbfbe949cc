"""The version of a package that has different names, such as a nightly build's."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def version_of(*names: str) -> str:
    """That of the first of the distributions `names` that is installed; "unknown" if none is."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
