"""TFRecord files, written and read by any number of workers; all in one process."""

import itertools
import os
import struct
from pathlib import Path

import fsspec
import numpy as np
import pytest
import tensorflow as tf

from phalanx.data.pipelines.indexed import IndexedPipeline
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.pipelines.padding import Padding
from phalanx.data.sources.tfrecords.source import tfrecords
from phalanx.data.sources.tfrecords.write import write_tfrecords
from phalanx.data.streams.stream_pipeline import StreamPipeline
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import ConfigurationError, DataError

SAMPLES = 83


def samples(count=SAMPLES):
    ids = np.arange(count)
    return {"id": ids, "image": (ids[:, None] % 256).astype("uint8").repeat(6, 1), "w": ids / 7}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    topology = tmp_path_factory.mktemp("plain")
    return write_tfrecords(samples(), str(topology / "part"), shards=5)


@pytest.fixture(scope="module")
def gzipped(tmp_path_factory):
    topology = tmp_path_factory.mktemp("gzip")
    return write_tfrecords(samples(), str(topology / "part"), shards=2, compression="GZIP")


def pipeline(source, size=16, **options):
    requested = PipelineOptions(global_batch_size=size, **options)
    return (StreamPipeline if hasattr(source, "open") else IndexedPipeline)(source, requested)


def ids_of(made, workers, steps, start=0, local=1):
    """For each step the ids on each replica, by rank; asserts the counts."""
    total = workers * local
    places = [ReplicaTopology(first=r * local, local=local, total=total) for r in range(workers)]
    iterators = [made.batches(topology).open(start) for topology in places]
    batches = []
    for _ in range(steps):
        batch = []
        for iterator in iterators:
            size, parts = next(iterator)
            batch += [part["id"].numpy()[: int(count)].tolist() for count, part in parts]
        assert sum(map(len, batch)) == int(size)
        assert max(map(len, batch)) - min(map(len, batch)) <= 1
        batches.append(batch)
    return batches


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def sets(batches):
    return [sorted(flat(batch)) for batch in batches]


def test_samples_come_back_as_they_were_written(plain):
    for source in (tfrecords(plain), tfrecords(plain, index=True)):
        made = pipeline(source, SAMPLES, shuffle=False).batches(ReplicaTopology())
        _, ((_, data),) = next(made.open(0))
        for name, expected in samples().items():
            assert data[name].dtype == expected.dtype
            assert (data[name].numpy() == expected).all()
        assert made.batch_spec["image"].shape.as_list() == [None, 6]


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("files", ["plain", "gzipped"])
def test_a_stream_gives_every_sample_once_an_epoch(files, workers, request):
    """5 files are read by file, 2 by record where there are 3 workers or more."""
    made = pipeline(tfrecords(request.getfixturevalue(files)), shuffle_buffer=20)
    first, second = sets(ids_of(made, workers, 6)), sets(ids_of(made, workers, 6, start=6))
    for epoch in (first, second):
        assert [len(batch) for batch in epoch] == [16] * 5 + [3]
        assert sorted(flat(epoch)) == list(range(SAMPLES))
    assert first != second


@pytest.mark.full
def test_a_batch_smaller_than_the_workers_leaves_some_without(plain):
    made = pipeline(tfrecords(plain), size=27, shuffle_buffer=20)  # 2 are left for the last
    batches = ids_of(made, 4, 4)
    assert [len(part) for part in batches[-1]] == [1, 1, 0, 0]
    assert sorted(flat(sets(batches))) == list(range(SAMPLES))


@pytest.mark.full
def test_read_by_record_batches_are_the_same_for_any_number_of_workers(gzipped):
    made = pipeline(tfrecords(gzipped), shuffle_buffer=20)
    assert sets(ids_of(made, 1, 12)) == sets(ids_of(made, 3, 12)) == sets(ids_of(made, 5, 12))


@pytest.mark.full
def test_with_an_index_the_order_is_exact_for_any_number_of_workers(plain):
    made = pipeline(tfrecords(plain, index=True))
    alone = sets(ids_of(made, 1, 12))
    assert sorted(flat(alone[:6])) == list(range(SAMPLES))
    assert alone == sets(ids_of(made, 2, 12)) == sets(ids_of(made, 3, 12, local=2))


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("index", [False, True])
def test_a_position_is_enough_to_continue(plain, workers, index):
    made = pipeline(tfrecords(plain, index=index), shuffle_buffer=20)
    assert ids_of(made, workers, 9)[4:] == ids_of(made, workers, 5, start=4)


@pytest.mark.full
def test_unshuffled_samples_keep_their_order(plain):
    made = pipeline(tfrecords(plain), shuffle=False, drop_remainder=True)
    assert flat(flat(ids_of(made, 3, 5))) == list(range(80))


@pytest.mark.full
def test_replicas_of_one_worker_share_what_it_reads(plain):
    made = pipeline(tfrecords(plain), shuffle_buffer=20)
    assert sorted(flat(sets(ids_of(made, 2, 6, local=3)))) == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [2])
def test_streams_are_shared_out(plain, workers):
    made = pipeline(tfrecords(plain), size=40, shuffle_buffer=20)
    assert sorted(flat(sets(ids_of(made, workers, 3)))) == list(range(SAMPLES))


def test_who_reads_what_is_said(plain, gzipped, caplog):
    topology = ReplicaTopology(first=0, local=1, total=3)
    with caplog.at_level("INFO", logger="phalanx"):
        pipeline(tfrecords(plain)).batches(topology)
        pipeline(tfrecords(gzipped)).batches(topology)
    assert "each of 3 workers reads its own part of 5 files" in caplog.text
    assert "all 3 workers read all of 2 file(s) (fewer files than workers)" in caplog.text


@pytest.mark.full
def test_a_loop_of_ones_own_gets_an_epoch_each_time(plain):
    made = pipeline(tfrecords(plain), shuffle_buffer=20)
    dataset = made.dataset(ReplicaTopology(first=1, local=1, total=4))
    assert int(dataset.cardinality()) == 6
    epochs = [[batch["id"].numpy().tolist() for batch in dataset] for _ in range(2)]
    assert epochs[0] != epochs[1]
    of_fit = [batch[1] for batch in ids_of(made, 4, 12)]
    assert epochs[0] + epochs[1] == of_fit


@pytest.mark.full
def test_samples_are_mapped_and_augmented_by_their_place(plain):
    def move(sample, seed):
        return {**sample, "moved": tf.random.stateless_uniform([], seed)}

    def twice(sample):
        return {**sample, "id": sample["id"] * 2}

    made = pipeline(tfrecords(plain), size=83, map=twice, augment=move, shuffle_buffer=20)
    (ids,) = sets(ids_of(made, 1, 1))
    assert ids == list(range(0, 2 * SAMPLES, 2))
    _, ((_, first),) = next(made.batches(ReplicaTopology()).open(0))
    _, ((_, again),) = next(made.batches(ReplicaTopology()).open(0))
    assert (first["moved"].numpy() == again["moved"].numpy()).all()
    assert len(set(first["moved"].numpy().tolist())) == SAMPLES


def test_features_and_tuples(plain):
    features = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "w": tf.io.FixedLenFeature([], tf.string),
    }
    source = tfrecords(plain, features=features, supervised=("id", "w"), index=True)
    assert [spec.dtype for spec in source.element_spec] == [tf.int64, tf.string]
    with pytest.raises(ConfigurationError, match=r"supervised names \['x'\]"):
        tfrecords(plain, features=features, supervised=("x",))
    with pytest.raises(ConfigurationError, match=r"fixed length.*\['id'\]"):
        tfrecords(plain, features={"id": tf.io.VarLenFeature(tf.int64)})


def test_the_schema_of_other_files_is_not_replaced(tmp_path):
    first = write_tfrecords({"x": np.arange(4)}, str(tmp_path / "train"))
    with pytest.raises(DataError, match=r"schema\.json.* of other samples.*another directory"):
        write_tfrecords({"x": np.arange(4.0)}, str(tmp_path / "test"))
    assert {file.name for file in tmp_path.iterdir()} == {Path(first[0]).name, "schema.json"}
    write_tfrecords({"x": np.arange(3)}, str(tmp_path / "test"))
    again = {"z": np.arange(4.0)}
    with pytest.raises(DataError, match="of other samples"):
        write_tfrecords(again, str(tmp_path / "train"))
    for file in tmp_path.glob("test-*"):
        file.unlink()
    write_tfrecords(again, str(tmp_path / "train"))
    assert set(tfrecords(str(tmp_path / "train-*")).element_spec) == {"z"}


def test_records_without_a_schema_are_bytes(tmp_path):
    files = write_tfrecords(np.arange(5), str(tmp_path / "raw"), serialize=lambda n: b"%d" % n)
    _, ((_, data),) = next(
        pipeline(tfrecords(files), 5, shuffle=False).batches(ReplicaTopology()).open(0)
    )
    assert data.numpy().tolist() == [b"0", b"1", b"2", b"3", b"4"]


def test_bytes_keep_the_zeros_at_their_end(tmp_path):
    texts = [b"a\0\0", b"", b"\0"]
    files = write_tfrecords([{"x": text} for text in texts], str(tmp_path / "part"))
    source = tfrecords(files, index=True)
    found = [source.take(tf.constant([row], tf.int64))["x"].numpy()[0] for row in range(3)]
    assert found == texts


def written(values, tmp_path):
    """Samples, written and read again."""
    files = write_tfrecords(values, str(tmp_path / "part"))
    made = pipeline(tfrecords(files), len(values), shuffle=False).batches(ReplicaTopology())
    return next(made.open(0))[1][0][1]


def test_values_are_written_by_their_names(tmp_path):
    found = written([{"a": 1, "b": 20}, {"b": 21, "a": 2}], tmp_path)
    assert {name: values.numpy().tolist() for name, values in found.items()} == {
        "a": [1, 2],
        "b": [20, 21],
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.5, 3, 4.5], [2.5, 3.0, 4.5]),
        ([2, 3.0, True], [2, 3, 1]),
        ([np.float64(1.5), np.float32(2.5)], [1.5, 2.5]),
        ([np.float32(1.5), np.float64(2.5)], [1.5, 2.5]),
        ([np.uint8(1), np.int64(200)], [1, 200]),
        ([False, 1], [False, True]),
        (["a", b"b\0"], [b"a", b"b\0"]),
    ],
)
def test_values_are_written_as_the_dtype_of_the_first(values, expected, tmp_path):
    assert written(values, tmp_path).numpy().tolist() == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [{"r": 2}, {"r": 3.5}],
            r"r is int64, .*sample 1: 3\.5 \(float64\), which int64 .* Convert",
        ),
        (
            [np.uint8(1), np.int64(2), np.int64(400)],
            r"sample 2: 400 \(int64\), which uint8 does not",
        ),
        ([True, 5], r"5 \(int64\), which bool does not"),
        ([np.float32(1), np.float64(1e300)], r"1e\+300 \(float64\), which float32 does not"),
        ([1, float("nan")], r"nan \(float64\), which int64 does not"),
        ([1, "one"], "'one', which is no int64"),
        (["one", 1], r"1 \(int64\), which is not text"),
        ([{"r": None}], "None, which is neither a number nor text"),
        (
            [{"a": 1, "b": 2}, {"a": 1}],
            r"with the keys \['a', 'b'\].*sample 1 with the keys \['a'\]",
        ),
        ([{"a": 1}, {"a": 1, "b": 2}], r"sample 1 with the keys \['a', 'b'\]"),
        ([{"a": 1}, (1,)], "sample 1 with a tuple"),
        ([(1, 2), (1, 2, 3)], "a tuple with 2 arrays.*sample 1 with 3 arrays"),
    ],
)
def test_samples_that_differ_from_the_first_are_refused(values, message, tmp_path):
    with pytest.raises(DataError, match=message):
        write_tfrecords(values, str(tmp_path / "part"))
    assert not list(tmp_path.glob("*.tfrecord"))


def test_lists_next_to_arrays_are_written_as_arrays(tmp_path):
    files = write_tfrecords((np.arange(3), [[1, 2], [3, 4], [5, 6]]), str(tmp_path / "part"))
    source = tfrecords(files, index=True)
    x, y = source.take(tf.constant([2], tf.int64))
    assert (x.numpy().tolist(), y.numpy().tolist()) == ([2], [[5, 6]])


def test_a_name_with_brackets(tmp_path):
    (tmp_path / "run[3]").mkdir()
    (file,) = write_tfrecords(samples(4), str(tmp_path / "run[3]" / "part"))
    assert tfrecords(file).files == (file,)
    assert tfrecords(file, index=True).num_samples == 4


def test_the_index_is_remembered_next_to_the_file(tmp_path):
    (file,) = write_tfrecords(samples(9), str(tmp_path / "part"))
    assert tfrecords(file, index=True).num_samples == 9
    (kept,) = tmp_path.glob(".part-*.index.npz")
    assert tfrecords(str(tmp_path / "*.tfrecord")).files == (file,)
    kept.write_bytes(b"damaged")
    assert tfrecords(file).num_samples == 9
    write_tfrecords(samples(4), str(tmp_path / "part"))
    assert tfrecords(file).num_samples == 4
    assert tfrecords(file, remember=False, index=True).num_samples == 4


class TestDamage:
    """Record 2 of a file is changed on disk: still an example, with another image."""

    @pytest.fixture
    def damaged(self, tmp_path):
        (file,) = write_tfrecords(samples(9), str(tmp_path / "part"))
        content = Path(file).read_bytes()
        assert content.count(b"\2" * 6) == 1
        Path(file).write_bytes(content.replace(b"\2" * 6, b"\7" * 6))
        return file

    def test_the_record_is_named(self, damaged):
        made = pipeline(tfrecords(damaged, index=True), 9, shuffle=False).batches(ReplicaTopology())
        with pytest.raises(tf.errors.OpError, match=r"DataError: .*record 2 of .*part-00000"):
            next(made.open(0))

    def test_a_stream_names_it_when_it_comes_to_it(self, damaged):
        made = pipeline(tfrecords(damaged), 9, shuffle_buffer=3).batches(ReplicaTopology())
        with pytest.raises(tf.errors.OpError, match=r"DataError: Record 2 of .*part-00000"):
            next(made.open(0))

    def test_or_left_out_and_counted(self, damaged):
        made = pipeline(tfrecords(damaged, index=True), 9, shuffle=False, on_error="skip")
        _, ((_, data),) = next(made.batches(ReplicaTopology()).open(0))
        assert data["id"].numpy().tolist() == [0, 1, 3, 3, 4, 5, 6, 7, 8]
        assert list(made.skipped) == [2]

    def test_a_damaged_length_is_found_at_once(self, damaged):
        with open(damaged, "r+b") as stream:
            stream.write(struct.pack("<Q", 1 << 40))
        with pytest.raises(DataError, match=r"Record 0 of .*part-00000.* its checksum"):
            tfrecords(damaged)

    def test_a_file_that_is_cut_off(self, damaged):
        with open(damaged, "r+b") as stream:
            stream.truncate(200)
        with pytest.raises(DataError, match=r"Record 2 of .*part-00000.*the file ends in"):
            tfrecords(damaged, remember=False)

    def test_a_compressed_file_that_is_cut_off(self, tmp_path):
        (file,) = write_tfrecords(samples(9), str(tmp_path / "part"), compression="GZIP")
        with open(file, "r+b") as stream:
            stream.truncate(120)
        with pytest.raises(DataError, match=r"Record \d of .*part-00000"):
            tfrecords(file)


class TestRefusals:
    def test_no_file(self, tmp_path):
        with pytest.raises(DataError, match=r"no\*\.tfrecord'; found none"):
            tfrecords(str(tmp_path / "no*.tfrecord"))
        with pytest.raises(DataError, match="empty list"):
            tfrecords([])

    def test_no_record(self, tmp_path):
        (tmp_path / "a.tfrecord").touch()
        for index in (False, True):
            with pytest.raises(DataError, match="found no record"):
                tfrecords(str(tmp_path / "a.tfrecord"), index=index)

    def test_an_index_of_compressed_files(self, gzipped):
        with pytest.raises(ConfigurationError, match="needs plain TFRecord files; found GZIP"):
            tfrecords(gzipped, index=True)

    def test_files_of_two_kinds(self, plain, gzipped):
        with pytest.raises(ConfigurationError, match="compressed in the same way"):
            tfrecords([plain[0], gzipped[0]])

    def test_what_needs_numbers(self, plain):
        with pytest.raises(ConfigurationError, match=r"balance and on_error='skip' .*index=True"):
            pipeline(tfrecords(plain), balance=True, on_error="skip")
        padding = Padding(lengths=[1] * SAMPLES)
        with pytest.raises(ConfigurationError, match=r"Padding\(lengths=\) .*index=True"):
            pipeline(tfrecords(plain), padding=padding)

    def test_disorder_where_all_read_all(self, gzipped):
        topology = ReplicaTopology(first=0, local=1, total=3)
        with pytest.raises(DataError, match="deterministic=False"):
            pipeline(tfrecords(gzipped), deterministic=False).batches(topology)
        pipeline(tfrecords(gzipped), deterministic=False).batches(ReplicaTopology())

    def test_no_complete_batch(self, plain):
        with pytest.raises(DataError, match="batches of 100 samples and no smaller one; found 83"):
            pipeline(tfrecords(plain), 100, drop_remainder=True).batches(ReplicaTopology())

    def test_what_cannot_be_written(self, tmp_path):
        path = str(tmp_path / "part")
        with pytest.raises(DataError, match="3 samples to 4 files"):
            write_tfrecords(np.arange(3), path, shards=4)
        with pytest.raises(ConfigurationError, match="compression must be"):
            write_tfrecords(np.arange(3), path, compression="LZ4")
        with pytest.raises(DataError, match="different lengths"):
            write_tfrecords((np.arange(3), np.arange(4)), path)
        with pytest.raises(DataError, match=r"the shape \(2,\); found one with \(3,\)"):
            write_tfrecords([np.zeros(2), np.zeros(3)], path)
        assert not list(tmp_path.glob("*.tfrecord"))


@pytest.mark.full
class TestPlaces:
    def test_what_tensorflow_knows(self):
        files = write_tfrecords(samples(9), "ram://records/part", shards=2)
        assert sorted(files) == list(tfrecords("ram://records/*.tfrecord").files)
        assert tfrecords(files).num_samples == 9
        with pytest.raises(DataError, match="on this machine; found ram://"):
            tfrecords(files, index=True)

    def test_what_fsspec_knows(self, plain):
        memory = fsspec.filesystem("memory")
        for file in plain:
            memory.put(file, f"/bucket/{os.path.basename(file)}")
        source = tfrecords("memory://bucket/part-*", index=True, remember=False)
        assert source.num_samples == SAMPLES
        with pytest.raises(DataError, match="found none"):
            tfrecords("memory://bucket/nothing")
        with pytest.raises(DataError, match="fsspec cannot open"):
            tfrecords("nonsense://bucket/part-*")
