"""Sources of other libraries, the real ones: Hugging Face datasets and grain."""

import datasets
import grain
import numpy as np
import pytest
import tensorflow as tf
from array_record.python import array_record_module

import phalanx
from phalanx.data.adapt import make_batch_source
from phalanx.data.sources.resolve_source import resolve_source
from phalanx.distributed.topology import ReplicaTopology

pytestmark = pytest.mark.full
SAMPLES = 10


def samples_of(dataset, workers):
    """One epoch's samples, from the shares of all workers."""
    found = []
    for rank in range(workers):
        topology = ReplicaTopology(first=rank, total=workers)
        batches = make_batch_source(dataset, topology=topology, seed=0)
        iterator = batches.open(0)
        for _ in range(batches.num_batches):
            _, ((count, data),) = next(iterator)
            data = tf.nest.map_structure(lambda one, n=int(count): one.numpy()[:n], data)
            flat = tf.nest.flatten(data)
            found += [tf.nest.pack_sequence_as(data, row) for row in zip(*flat, strict=True)]
    return found


def hugging_face():
    return datasets.Dataset.from_dict(
        {
            "id": list(range(SAMPLES)),
            "text": [f"row {n}" for n in range(SAMPLES)],
            "vector": [[n, n + 0.5] for n in range(SAMPLES)],
            "label": [n % 2 for n in range(SAMPLES)],
            "image": [np.full((2, 3, 3), n, np.uint8) for n in range(SAMPLES)],
        },
        features=datasets.Features(
            {
                "id": datasets.Value("int64"),
                "text": datasets.Value("string"),
                "vector": datasets.List(datasets.Value("float32")),
                "label": datasets.ClassLabel(names=["even", "odd"]),
                "image": datasets.Image(),
            }
        ),
    )


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("form", [None, "numpy"])
def test_a_hugging_face_dataset(workers, form):
    table = hugging_face().filter(lambda row: row["id"] != 4).with_format(form)
    found = samples_of(phalanx.data.pipeline(table, 4, seed=2), workers)
    assert sorted(row["id"] for row in found) == [n for n in range(SAMPLES) if n != 4]
    for row in found:
        number = row["id"]
        assert row["text"] == f"row {number}".encode()
        assert row["vector"].tolist() == [number, number + 0.5]
        assert row["vector"].dtype == np.float32
        assert (row["label"], row["image"].dtype) == (number % 2, np.uint8)
        assert (row["image"] == number).all()
        assert row["image"].shape == (2, 3, 3)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_grain_map_dataset(workers):
    numbers = grain.MapDataset.range(SAMPLES).map(lambda n: {"id": n, "half": np.float32(n / 2)})
    found = samples_of(phalanx.data.pipeline(numbers, 4, seed=2), workers)
    assert sorted((row["id"], row["half"]) for row in found) == [(n, n / 2) for n in range(SAMPLES)]


def test_grain_draws_by_its_own_seed():
    noisy = grain.MapDataset.range(SAMPLES).seed(3).random_map(lambda n, rng: n + rng.random())
    dataset = phalanx.data.pipeline(noisy, 4, shuffle=False)
    found = [value for batch in dataset for value in batch.numpy().tolist()]
    assert found == pytest.approx([float(noisy[n]) for n in range(SAMPLES)])


def test_a_grain_data_source(tmp_path):
    writer = array_record_module.ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
    for number in range(SAMPLES):
        writer.write(b"%d" % number)
    writer.close()
    records = grain.sources.ArrayRecordDataSource(str(tmp_path / "a.array_record"))
    assert resolve_source(records).num_samples == SAMPLES
    dataset = phalanx.data.pipeline(records, 4, map=tf.strings.to_number)
    assert sorted(samples_of(dataset, 2)) == list(range(SAMPLES))
    ranged = phalanx.data.pipeline(grain.sources.RangeDataSource(3, 9, 2), 2)
    assert sorted(samples_of(ranged, 1)) == [3, 5, 7]
