"""The example runs, and what it measures is what docs/clipping.md says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "exploding_gradients.py"


@pytest.mark.full
def test_clipping_after_the_sum_is_what_one_device_does(tmp_path):
    verdict, image = tmp_path / "verdict.json", tmp_path / "curves.png"
    sizes = ["--seeds", "1", "--steps", "60", "--length", "6", "--growth", "1.5"]
    command = [sys.executable, str(SCRIPT), *sizes, "--json", str(verdict), "--plot", str(image)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "phalanx.fit beside one device" in done.stdout
    assert image.read_bytes().startswith(b"\x89PNG")

    found = json.loads(verdict.read_text())
    assert found["unclipped"]["diverged"] == 1
    for contender in ("keras", "phalanx", "one"):
        assert found[contender]["diverged"] == 0
    assert found["keras"]["largest_update"] == pytest.approx(4, rel=0.05)
    assert found["phalanx"]["largest_update"] == pytest.approx(1, rel=1e-6)
    assert found["one"]["largest_update"] == pytest.approx(1, rel=1e-6)
    assert max(found["apart"]) < 1e-8


def test_a_batch_that_does_not_divide_is_refused():
    command = [sys.executable, str(SCRIPT), "--batch-size", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert "multiple of 4" in done.stderr
