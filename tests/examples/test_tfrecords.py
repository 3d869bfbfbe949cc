"""Trained from TFRecord files, the network is as good as trained from arrays."""

from pathlib import Path

import pytest
from running import accuracy, ran

SCRIPT = Path(__file__).parents[2] / "examples" / "tfrecords.py"
LIMIT = ["--limit", "4000"]
RUN = ["-m", "phalanx", "run", "--seed", "1", "--workers", "2"]


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_records_train_as_arrays_do(tmp_path):
    wrote = ran(tmp_path, str(SCRIPT), "--write", *LIMIT)
    assert "wrote 10 files" in wrote
    from_arrays = accuracy(ran(tmp_path, *RUN, str(SCRIPT), "--arrays", *LIMIT))
    by_number = accuracy(ran(tmp_path, *RUN, str(SCRIPT)))
    streamed = ran(tmp_path, *RUN, str(SCRIPT), "--stream")
    assert from_arrays > 0.93
    assert by_number == pytest.approx(from_arrays, abs=0.004)  # the same batches in one order
    assert "each of 2 workers reads its own part of 8 files" in streamed
    assert accuracy(streamed) == pytest.approx(from_arrays, abs=0.015)
