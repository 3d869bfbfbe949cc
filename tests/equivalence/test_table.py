"""The table of docs/equivalence-table.md can be made."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_phalanx_is_right_in_rows_of_the_table():
    words = ["benchmarks/equivalence.py", "adam", "spatial_dropout", "--json"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert list(rows) == ["adam", "spatial_dropout"]
    for cells in rows.values():
        assert cells["phalanx-mirrored"]["right"] is cells["phalanx-multiworker"]["right"] is True
    assert rows["spatial_dropout"]["keras-mirrored"]["text"].startswith("weights off by")
