"""Lines of a script that fail because other workers run them too, on the same files."""

from __future__ import annotations

import gzip
import linecache
import lzma
import os
import pickle
import re
import sysconfig
import tarfile
import traceback
import zipfile
import zlib
from pathlib import Path

_LIBRARIES = tuple(
    f"{path}{os.sep}"
    for path in (sysconfig.get_path("stdlib"), str(Path(__file__).resolve().parents[1]))
)
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))

_HALF_READ = (
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    tarfile.ReadError,
    zipfile.BadZipFile,
    zlib.error,
)
_HALF_READ_TEXTS = re.compile(r"truncated|unexpected end of|too short to be|end-of-file", re.I)
_READS = (OSError, ValueError, RuntimeError, pickle.UnpicklingError)
"""Errors that libraries raise for other reasons than files too, so the message decides."""


def is_scripts(file: str) -> bool:
    """Whether a source file is the user's own, and no library's."""
    return not file.startswith(("<frozen ", *_LIBRARIES)) and not any(p in file for p in _PACKAGES)


def advice_about_files(error: BaseException, workers: int) -> str:
    """What to do if `error` may come of several workers that run a line; else nothing."""
    if workers == 1 or not (isinstance(error, FileExistsError) or is_half_read(error)):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame for frame in reversed(frames) if is_scripts(frame.filename)), None)
    if line is None or line.lineno is None:
        return ""
    source = linecache.getline(line.filename, line.lineno).strip()
    code_line = f": {source}" if source else ""
    found = (
        "it was there, from before the run or from another worker"
        if isinstance(error, FileExistsError)
        else "the file is incomplete, which is how another worker's looks while it is written"
    )
    return (
        f"All {workers} workers run line {line.lineno} of "
        f"{os.path.basename(line.filename)}{code_line}\n"
        f"  For this one {found}. To have one worker of each host run it before the others: "
        "with phalanx.local_chief_first():"
    )


def is_half_read(error: BaseException) -> bool:
    """Whether an error is what reading the first part of a file ends in."""
    if isinstance(error, _HALF_READ):
        return True
    # TensorFlow's errors are no OSErrors; DataLossError is what its readers raise.
    if isinstance(error, _READS) or type(error).__name__ == "DataLossError":
        return bool(_HALF_READ_TEXTS.search(str(error)))
    return False
