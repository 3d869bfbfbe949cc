"""The contenders' own Python environment, made on first use and again when it changes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_VENV = ROOT / ".cache" / "bench-venv"
_PACKAGES = ("phalanx", "keras", "tensorflow-cpu", "tf-keras", "torch")


def contenders_python() -> Path:
    """The interpreter that the contenders run in; installs them where they are not yet."""
    python = _VENV / "bin" / "python"
    stamp = _VENV / ".installed"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Installing the contenders into {_VENV.relative_to(ROOT)} ...", file=sys.stderr)
        venv.create(_VENV, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", _REQUIREMENTS, "-e", ROOT], check=True)
        stamp.write_text(wanted)
    return python


def versions(python: Path, packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """What the contenders run on."""
    code = (
        "import sys, platform\nfrom importlib.metadata import version\n"
        "print('Python', platform.python_version())\n"
        "for name in sys.argv[1:]: print(name, version(name))"
    )
    output = subprocess.run(
        [python, "-c", code, *packages], check=True, capture_output=True, text=True
    ).stdout
    return dict(line.split() for line in output.splitlines())
