"""Each patch in tests/breaks applies to the source as it is."""

import subprocess

import pytest
from pages import ROOT


@pytest.mark.parametrize(
    "patch", sorted((ROOT / "tests" / "breaks").glob("*.patch")), ids=lambda p: p.stem
)
def test_a_break_applies(patch):
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
