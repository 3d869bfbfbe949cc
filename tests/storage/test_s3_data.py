"""Data on S3, by real servers: what each kind of source reads there is what the files hold here."""

import gzip
import struct
import uuid

import fsspec
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import DataError

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SAMPLES = 11
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Files of every kind."""
    top = tmp_path_factory.mktemp("here")
    for number in range(SAMPLES):
        folder = top / "images" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        image = RNG.integers(0, 255, (4, 3, 3), np.uint8)
        (folder / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    for part in range(2):
        columns = {"x": RNG.normal(size=SAMPLES).astype("float32"), "y": np.arange(SAMPLES) % 3}
        table = pyarrow.table(columns)
        pyarrow.parquet.write_table(table, top / f"{part}.parquet")
        pyarrow.csv.write_csv(table, top / f"{part}.csv")
    header = struct.pack(">HBBII", 0, 8, 2, SAMPLES, 5)
    content = header + RNG.integers(0, 255, (SAMPLES, 5), np.uint8).tobytes()
    (top / "some.idx.gz").write_bytes(gzip.compress(content))
    arrays = {"id": np.arange(SAMPLES), "x": RNG.normal(size=(SAMPLES, 2)).astype("float32")}
    phalanx.data.write_tfrecords(arrays, str(top / "plain"), shards=2)
    phalanx.data.write_tfrecords(arrays, str(top / "zipped"), shards=2, compression="GZIP")
    return top


@pytest.fixture
def there(moto, monkeypatch):
    """A URL, and a function that puts files there."""
    monkeypatch.setitem(fsspec.config.conf, "s3", moto.options())
    name = f"bucket/{uuid.uuid4().hex}"

    def put(directory):
        for file in directory.rglob("*"):
            if file.is_file() and not file.name.startswith("."):
                path = file.relative_to(directory)
                fsspec.filesystem("s3").pipe_file(f"{name}/{path}", file.read_bytes())

    return f"s3://{name}", put


def sources(top):
    features = {"id": tf.io.FixedLenFeature([], tf.int64), "x": tf.io.FixedLenFeature([2], "float")}
    return {
        "images": lambda: phalanx.data.images(f"{top}/images"),
        "csv": lambda: phalanx.data.csv(f"{top}/*.csv", label="y"),
        "parquet": lambda: phalanx.data.parquet(f"{top}/*.parquet", label="y"),
        "idx": lambda: phalanx.data.idx(f"{top}/some.idx.gz"),
        "records": lambda: phalanx.data.tfrecords(
            f"{top}/plain-*.tfrecord", features=features, index=True
        ),
        "zipped records": lambda: phalanx.data.tfrecords(
            f"{top}/zipped-*.tfrecord*", features=features
        ),
    }


def batches(source):
    return [
        [part.numpy().tolist() for part in tf.nest.flatten(batch)]
        for batch in phalanx.data.pipeline(source, 4, seed=3)
    ]


def test_what_is_read_there_is_what_is_here(here, there):
    url, put = there
    put(here)
    local = sources(here)
    for name, remote in sources(url).items():
        expected = batches(local[name]())
        assert sum(len(batch[0]) for batch in expected) in (SAMPLES, 2 * SAMPLES)
        assert batches(remote()) == expected, name


def test_what_is_missing_is_named(here, there):
    url, put = there
    put(here)
    with pytest.raises(DataError, match=r"no\*\.csv; found none"):
        phalanx.data.csv(f"{url}/no*.csv")
    images = phalanx.data.images(f"{url}/images")
    fsspec.filesystem("s3").rm(f"{url}/images/dog/4.png")
    with pytest.raises(tf.errors.OpError, match=r"Asked to read the image s3://.*dog/4\.png"):
        list(phalanx.data.pipeline(images, 4))
    dataset = phalanx.data.pipeline(images, 4, on_error="skip")
    assert sum(len(labels) for _, labels in dataset) == SAMPLES
    assert list(phalanx.data.skipped(dataset)) == [images._files.index(f"{url}/images/dog/4.png")]


def test_what_is_forbidden_is_named(rclone, monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "s3", rclone.options(secret="wrong"))
    for read in (
        lambda: phalanx.data.csv("s3://bucket/*.csv"),
        lambda: phalanx.data.images("s3://bucket/images"),
        lambda: phalanx.data.tfrecords("s3://bucket/*.tfrecord"),
    ):
        with pytest.raises(DataError, match=r"Asked to read the file s3://bucket/.*cannot be read"):
            read()
