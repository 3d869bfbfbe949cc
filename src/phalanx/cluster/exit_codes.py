"""Exit codes that have a meaning between launcher and workers."""

from __future__ import annotations

RESUME_EXIT_CODE = 75
"""All that a resumed run needs was saved; the same command resumes it (EX_TEMPFAIL, sysexits.h)."""

EXIT_NODE_LOST = 1000
"""Stands for the exit code of a worker whose host is lost; no process can have it."""
