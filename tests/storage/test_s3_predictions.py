"""`phalanx predict` from object storage to object storage, with two workers."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROWS = (70, 5, 33)
MAKE = f"""
import keras
import numpy as np

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
model.save("model.keras")
for number, rows in enumerate({ROWS}):
    x = np.random.normal(size=(rows, 8)).astype("float32")
    np.save(f"rows-{{number}}.npy", x)
    np.save(f"expected-{{number}}.npy", model.predict(x, batch_size=256, verbose=0))
"""


def predict(place, server):
    words = ("model.keras", "s3://bucket/rows/*.npy", "s3://bucket/predictions")
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "predict", *words, "--workers", "2"],
        cwd=place,
        env={**os.environ, **server.environment()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_rows_and_predictions_on_object_storage(tmp_path, s3):
    subprocess.run([sys.executable, "-c", MAKE], cwd=tmp_path, check=True, timeout=120)
    files = s3.folder("").filesystem
    for number in range(len(ROWS)):
        files.put_file(str(tmp_path / f"rows-{number}.npy"), f"bucket/rows/{number}.npy")

    finished = predict(tmp_path, s3)
    assert finished.returncode == 0, finished.stderr
    for number in range(len(ROWS)):
        found = files.cat_file(f"bucket/predictions/{number}.npy")
        assert found == (tmp_path / f"expected-{number}.npy").read_bytes()
    manifest = json.loads(files.cat_file("bucket/predictions/predictions.json"))
    assert manifest["complete"]
    assert manifest["rows"] == sum(ROWS)

    assert predict(tmp_path, s3).returncode == 0
    assert len(list((tmp_path / "runs").iterdir())) == 1, "nothing was left to do"
