"""How much memory this process holds."""

from __future__ import annotations

import psutil


def resident_bytes() -> int:
    """The resident set of this process (RSS), in bytes; memory of GPUs is not in it."""
    return int(psutil.Process().memory_info().rss)
