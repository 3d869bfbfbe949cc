"""Trained from PNG files, the network is as good as trained from arrays."""

from pathlib import Path

import pytest
from running import accuracy, ran

SCRIPT = Path(__file__).parents[2] / "examples" / "images.py"
LIMIT = ["--limit", "4000"]
RUN = ["-m", "phalanx", "run", "--seed", "1", "--workers"]


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_images_train_as_arrays_do(tmp_path):
    assert "wrote 4000 images to mnist-images/train" in ran(
        tmp_path, str(SCRIPT), "--write", *LIMIT
    )
    assert len(list(tmp_path.glob("mnist-images/*/*/*.png"))) == 8000
    from_arrays = accuracy(ran(tmp_path, *RUN, "1", str(SCRIPT), "--arrays", *LIMIT))
    from_files = accuracy(ran(tmp_path, *RUN, "2", str(SCRIPT)))
    shifted = accuracy(ran(tmp_path, *RUN, "2", str(SCRIPT), "--shift"))
    assert from_arrays > 0.91
    assert from_files == pytest.approx(from_arrays, abs=0.004)  # the same batches in one order
    assert shifted > 0.91
