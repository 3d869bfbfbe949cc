"""Each kind of source: its samples, where they stand, and what is said of what is broken."""

import datetime
import decimal
import glob
import gzip
import struct

import fsspec
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.data.sources.resolve_source import resolve_source
from phalanx.data.sources.row_range import rows_of_source
from phalanx.errors import ConfigurationError, DataError, NoSamplesError

pyarrow = pytest.importorskip("pyarrow")


def sample(source, row):
    return tf.nest.map_structure(lambda v: v.numpy(), source.read(tf.constant(row, tf.int64)))


def batch(source, rows):
    taken = source.take(tf.constant(rows, tf.int64))
    return tf.nest.map_structure(lambda v: v.numpy().tolist(), taken)


def write_png(path, value, size=(2, 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.full((*size, 3), value, np.uint8)
    path.write_bytes(tf.io.encode_png(image).numpy())


@pytest.fixture
def folders(tmp_path):
    for number, name in enumerate(["cat/a", "cat/b", "dog/c", "dog/deep/d"]):
        write_png(tmp_path / f"{name}.png", number)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_images_by_class(folders):
    source = resolve_source(str(folders))
    assert source.class_names == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 1, 1]
    assert source.num_samples == 4
    for row in range(4):
        image, label = sample(source, row)
        assert image.shape == (2, 3, 3)
        assert (image == row).all()
        assert label == row // 2
    assert source.where(2) == f"the image {folders}/dog/c.png"


def test_images_of_any_kind_and_size(tmp_path):
    write_png(tmp_path / "a.png", 10, size=(5, 4))
    jpeg = tf.io.encode_jpeg(np.full((8, 9, 3), 10, np.uint8)).numpy()
    (tmp_path / "b.JPG").write_bytes(jpeg)
    source = phalanx.data.images(tmp_path, size=(2, 3), channels=1)
    assert source.labels is None
    for row in range(2):
        image = sample(source, row)
        assert image.shape == (2, 3, 1)
        assert abs(int(image.mean()) - 10) <= 1


def test_images_of_another_size_and_broken_ones_are_named(folders):
    write_png(folders / "dog" / "wide.png", 9, size=(2, 4))
    (folders / "dog" / "x.png").write_bytes((folders / "dog" / "c.png").read_bytes()[:40])
    dataset = phalanx.data.pipeline(str(folders), 2, shuffle=False, on_error="skip")
    labels = [y.numpy().tolist() for _, y in dataset]
    assert labels == [[0, 0], [1, 1], [0, 0]]  # the next ones stand in: the first two
    left_out = phalanx.data.skipped(dataset)
    assert list(left_out) == [4, 5]
    assert "wide.png" in left_out[4]
    assert "x.png" in left_out[5]
    with pytest.raises(tf.errors.OpError, match=r"Asked to read the image .*wide\.png"):
        list(phalanx.data.pipeline(str(folders), 2, shuffle=False))


def test_folders_that_hold_no_classes_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"found no file that ends in \.png"):
        phalanx.data.images(tmp_path)
    write_png(tmp_path / "a.png", 1)
    write_png(tmp_path / "cat" / "a.png", 1)
    with pytest.raises(DataError, match=r"1 image\(s\) in no folder"):
        phalanx.data.images(tmp_path)
    with pytest.raises(ConfigurationError, match="channels"):
        phalanx.data.images(tmp_path, channels=2)


def test_csv_columns_and_types(tmp_path):
    (tmp_path / "b.csv").write_text("x,name,y\n3,three,1\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,name,y\n1.5,one,0\n2,two,1\n"))
    source = phalanx.data.csv(str(tmp_path / "*.csv*"), label="y")
    features, label = sample(source, 2)
    assert features == {"x": 3.0, "name": b"three"}
    assert features["x"].dtype == np.float32
    assert (label, label.dtype) == (1, np.int64)
    assert source.labels is not None
    assert source.where(2) == f"row 1 of {tmp_path}/b.csv"
    assert source.where(1) == f"row 2 of {tmp_path}/a.csv.gz"
    vector = phalanx.data.csv(str(tmp_path / "b.csv"), columns=["x", "y"], as_vector=True)
    assert sample(vector, 0).tolist() == [3.0, 1.0]


def test_csv_rows_that_are_broken_are_named_or_left_out(tmp_path, caplog):
    file = tmp_path / "a.csv"
    file.write_text("x,y\n1,2\n3\n5,6\n,8\n9,10\n")
    with pytest.raises(DataError, match=r"row 3 of .*a\.csv: 1 values for 2 columns: '3'"):
        phalanx.data.csv(file)
    source = phalanx.data.csv(file, on_error="skip")
    assert source.num_samples == 3
    assert sample(source, 2) == {"x": 9.0, "y": 10}
    assert source.where(2).startswith("row 5 of")
    assert "Left out 1 row(s)" in caplog.text
    assert "lack a value" in caplog.text
    file.write_text("x,y\n1,2\n,8\n")
    with pytest.raises(DataError, match=r"no value in row 2 of .*a\.csv"):
        phalanx.data.csv(file)


def test_a_missing_value_leaves_the_integers_of_a_column_whole(tmp_path):
    import pyarrow.parquet

    numbers = [2**53 + 1, None, 16777217]
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": numbers, "y": [1, 2, 3]}), file)
    (tmp_path / "a.csv").write_text(f"x,y\n{numbers[0]},1\n,2\n{numbers[2]},3\n")
    for source in (
        phalanx.data.parquet(file, on_error="skip"),
        phalanx.data.csv(tmp_path / "a.csv", on_error="skip"),
    ):
        found = [sample(source, row) for row in range(2)]
        assert [one["x"] for one in found] == [numbers[0], numbers[2]]
        assert {one["x"].dtype for one in found} == {np.dtype("int64")}


def test_tables_without_such_a_column_or_any_row_are_refused(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("x,y\n")
    with pytest.raises(DataError, match="found none"):
        phalanx.data.csv(file)
    file.write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match=r"without \['z'\]"):
        phalanx.data.csv(file, label="z")


def test_a_csv_without_rows_among_others(tmp_path):
    for name, text in {"a": "x,y\n", "b": "x,y\n1,0.5\n", "c": "x,y\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    source = phalanx.data.csv(str(tmp_path / "*.csv"), label="x", as_vector=True)
    assert batch(source, [0]) == ([[0.5]], [1])


def test_parquet(tmp_path):
    import pyarrow.parquet

    columns = {"x": [[1.0, 2.0], [3.0, 4.0]], "y": [1, 2]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    source = phalanx.data.parquet(tmp_path / "a.parquet", label="y")
    assert batch(source, [1, 0]) == ({"x": [[3.0, 4.0], [1.0, 2.0]]}, [2, 1])
    assert resolve_source(str(tmp_path / "*.parquet")).num_samples == 2
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"b\.parquet as Parquet"):
        phalanx.data.parquet(tmp_path / "b.parquet")


def test_decimals_of_parquet_are_numbers(tmp_path):
    import pyarrow.parquet

    file = tmp_path / "a.parquet"
    values = [decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")]
    days = [datetime.time(1), datetime.time(2), datetime.time(3)]
    columns = {"price": values, "time": days, "sold": [True, None, False]}
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    source = phalanx.data.parquet(file, columns=["price", "sold"], on_error="skip")
    assert sample(source, 1) == {"price": -2.25, "sold": False}
    assert sample(source, 1)["price"].dtype == np.float32
    with pytest.raises(
        DataError, match=r"column 'time' of .* values of type time64.* Make numbers"
    ):
        phalanx.data.parquet(file, columns=["time"])


def test_a_name_with_brackets(tmp_path):
    (tmp_path / "run[3]").mkdir()
    file = tmp_path / "run[3]" / "a[1].csv"
    file.write_text("x,y\n1,2\n")
    (tmp_path / "run[3]" / "a1.csv").write_text("x,y\n3,4\n")
    for name in (str(file), f"file://{file}", [str(file)]):
        assert sample(phalanx.data.csv(name), 0) == {"x": 1, "y": 2}
    pattern = f"{glob.escape(str(tmp_path / 'run[3]'))}/a[1].csv"
    assert sample(phalanx.data.csv(pattern), 0) == {"x": 3, "y": 4}
    with tf.io.gfile.GFile("ram://run[3]/a.csv", "w") as stream:
        stream.write("x,y\n5,6\n")
    assert sample(phalanx.data.csv("ram://run[3]/a.csv"), 0) == {"x": 5, "y": 6}
    fsspec.filesystem("memory").pipe("/run[3]/a.csv", b"x,y\n7,8\n")
    assert sample(phalanx.data.csv("memory://run[3]/a.csv"), 0) == {"x": 7, "y": 8}


def idx_bytes(array, code):
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.tobytes()


def test_numpy_files(tmp_path):
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    np.save(tmp_path / "a-1.npy", x)
    np.save(tmp_path / "a-2.npy", x[:0])
    np.save(tmp_path / "a-3.npy", x[:1] + 10)
    source = resolve_source(str(tmp_path / "a-*.npy"))
    assert batch(source, [3, 0]) == [[10, 11], [0, 1]]
    np.savez(tmp_path / "b.npz", y=y, x=x)
    assert batch(resolve_source(tmp_path / "b.npz"), [2]) == ([[4, 5]], [2])
    np.savez(tmp_path / "c.npz", left=x, right=y)
    assert batch(resolve_source(tmp_path / "c.npz"), [1]) == {"left": [[2, 3]], "right": [1]}
    with pytest.raises(
        DataError, match=r"the arrays \['x', 'y'\] of 2 files, .*b\.npz; found others"
    ):
        resolve_source([str(tmp_path / "b.npz"), str(tmp_path / "c.npz")])
    (tmp_path / "d.npy").write_bytes(b"none")
    with pytest.raises(DataError, match=r"read .*d\.npy as NumPy's; found"):
        resolve_source(tmp_path / "d.npy")


def test_neighbouring_rows_of_a_source(tmp_path):
    x = np.arange(20)
    rows = rows_of_source(resolve_source(x), range(5, 9))
    assert (rows.num_samples, batch(rows, [0, 3])) == (4, [5, 8])
    assert rows.where(1) == "sample 6"
    phalanx.data.write_tfrecords(np.arange(8), tmp_path / "x", shards=3)
    stream = resolve_source(sorted(map(str, tmp_path.glob("*.tfrecord"))))
    assert rows_of_source(stream, range(8)) is stream
    whole = samples_of(stream)
    for start in range(8):
        for stop in range(start + 1, 9):
            part = rows_of_source(stream, range(start, stop))
            assert samples_of(part) == whole[start:stop]
            assert part.num_samples == stop - start


def samples_of(stream):
    counted = zip(stream.files, stream.counts, strict=True)
    records = [
        record for file, rows in counted for record in stream.open(tf.constant(file)).take(rows)
    ]
    return stream.finish(tf.stack(records)).numpy().tolist()


def test_an_empty_file_has_an_error_of_its_own(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n")
    (tmp_path / "a.tfrecord").write_bytes(b"")
    for name in ("a.csv", "a.tfrecord"):
        with pytest.raises(NoSamplesError):
            resolve_source(str(tmp_path / name))


def test_idx(tmp_path):
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    names = [tmp_path / "t-images-idx3-ubyte.gz", tmp_path / "t-labels-idx1-ubyte"]
    names[0].write_bytes(gzip.compress(idx_bytes(images, 0x08)))
    names[1].write_bytes(idx_bytes(np.array([7, 8, 9], ">i4"), 0x0C))
    source = phalanx.data.idx(*names)
    assert batch(source, [2]) == ([images[2].tolist()], [9])
    assert resolve_source(str(names[1])).num_samples == 3
    names[1].write_bytes(names[1].read_bytes()[:-1])
    with pytest.raises(DataError, match=r"labels-idx1-ubyte, whose header names \(3,\)"):
        phalanx.data.idx(*names)
    names[1].write_bytes(b"PNG")
    with pytest.raises(DataError, match="begins with 50 4e 47"):
        phalanx.data.idx(*names)


def test_any_object_with_a_length_and_items():
    class Source:
        def __len__(self):
            return 3

        def __getitem__(self, row):
            return {"x": [row, row + 0.5], "text": f"row {row}", "long": np.arange(row)}

    source = resolve_source(Source())
    assert not source.gathers  # "long" differs in length
    found = sample(source, 2)
    assert found["x"].tolist() == [2.0, 2.5]
    assert found["x"].dtype == np.float32
    assert found["text"] == b"row 2"
    assert found["long"].tolist() == [0, 1]
    assert batch(resolve_source([(1, 2.0), (3, 4.0)]), [1, 0]) == ([3, 1], [4.0, 2.0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4, 3.0, 5, True, 1], [4, 3, 5, 1, 1]),
        ([1.5, 2, 2.5], [1.5, 2.0, 2.5]),
        ([np.uint8(1), np.int64(200), np.uint8(2), np.uint8(4), np.uint8(3)], [1, 200, 2, 4, 3]),
        (["a", "b", "c", b"d", "e"], [b"a", b"b", b"c", b"d", b"e"]),
    ],
)
def test_samples_have_the_dtype_of_those_that_were_looked_at(values, expected):
    (found,) = phalanx.data.pipeline(values, 8, shuffle=False)
    assert found.numpy().tolist() == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [{"n": 1, "rating": r} for r in (4, 3.5, 5, 2.5, 1)],
            r"read sample 1; found: DataError: .*\['rating'\] of sample 1: 3\.5 \(float32\), which "
            r"int64 does not hold\. Convert .* float\. Fix",
        ),
        ([np.uint8(1), np.int64(300), *map(np.uint8, range(3))], "300"),
        ([1, "7", 2, 3, 4], "'7', which is no int64"),
        (["a", 7, "b", "c", "d"], r"7 \(int64\), which is not text"),
    ],
)
def test_values_that_would_change_are_refused(values, message):
    with pytest.raises(tf.errors.OpError, match=message):
        list(phalanx.data.pipeline(values, 8, shuffle=False))
    dataset = phalanx.data.pipeline(values, 8, shuffle=False, on_error="skip")
    list(dataset)
    assert 1 in phalanx.data.skipped(dataset)


def test_lists_next_to_arrays_are_arrays():
    source = resolve_source((np.zeros((6, 2)), [[0, 1]] * 6))
    assert source.num_samples == 6
    x, y = sample(source, 5)
    assert (x.shape, y.tolist(), y.dtype) == ((2,), [0, 1], np.int64)
    source = resolve_source({"x": tf.zeros([2, 3]), "w": [0.5, 1.5], "name": ["a", "b\0"]})
    found = sample(source, 1)
    assert (found["w"], found["w"].dtype, found["name"]) == (1.5, np.float32, b"b\0")
    source = resolve_source(((np.zeros(2), np.ones(2)), [3, 4]))
    assert batch(source, [1]) == (([0.0], [1.0]), [4])
    assert resolve_source((np.zeros(3), [0, 1, 0])).labels.tolist() == [0, 1, 0]
    # Samples, as before, where each part of a tuple has a list.
    assert resolve_source(((np.zeros(3), [1, 2]), (np.zeros(3), [3, 4]))).num_samples == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1], [2, 3]], "rows of several shapes"),
        ([None, 1], "neither numbers nor text"),
        ([1, 2, 3], r"first axes of \[2, 3\]"),
    ],
)
def test_lists_next_to_arrays_that_are_no_arrays(values, message):
    with pytest.raises(DataError, match=message):
        resolve_source((np.zeros(2), values))


def test_bytes_keep_the_zeros_at_their_end():
    source = resolve_source([(b"a\0\0", [b"b\0", b"c"]), (b"", [b"\0", b""])])
    assert batch(source, [1, 0]) == ([b"", b"a\0\0"], [[b"\0", b""], [b"b\0", b"c"]])


def test_an_object_that_gives_several_items_is_asked_once_for_a_batch():
    class Source(list):
        def __getitems__(self, rows):
            requested.append(rows)
            return [self[row] for row in rows]

    requested = []
    source = resolve_source(Source([(1, 2.0), (3, 4.0), (5, 6.0)]))
    assert batch(source, [2, 0]) == ([5, 1], [6.0, 2.0])
    assert requested == [[2, 0]]


def test_samples_of_several_structures_are_refused():
    with pytest.raises(DataError, match="found several"):
        resolve_source([(1, 2), 3])
    with pytest.raises(DataError, match="hold a object"):
        resolve_source([object()])


def test_array_records(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    for part in (0, 1):
        writer = module.ArrayRecordWriter(str(tmp_path / f"{part}.array_record"), "group_size:1")
        for row in range(3):
            writer.write(f"{part}{row}".encode())
        writer.close()
    source = resolve_source(str(tmp_path / "*.array_record"))
    assert source.num_samples == 6
    assert sample(source, 4) == b"11"
    assert source.where(4) == f"record 1 of {tmp_path}/1.array_record"
    dataset = phalanx.data.pipeline(source, 4, map=tf.strings.to_number, shuffle=False)
    assert [b.numpy().tolist() for b in dataset] == [[0, 1, 2, 10], [11, 12]]
    (tmp_path / "2.array_record").write_bytes(b"none")
    with pytest.raises(DataError, match=r"2\.array_record as ArrayRecord"):
        resolve_source(str(tmp_path / "2.array_record"))


def test_files_in_another_storage():
    files = fsspec.filesystem("memory")
    files.pipe("/shop/a.csv", b"x,y\n1,2\n")
    for name in ("cat/a", "dog/b"):
        image = tf.io.encode_png(np.full((2, 2, 1), 7, np.uint8)).numpy()
        files.pipe(f"/pets/{name}.png", image)
    assert sample(resolve_source("memory://shop/*.csv"), 0) == {"x": 1, "y": 2}
    source = phalanx.data.images("memory://pets", channels=1)
    image, label = sample(source, 1)
    assert (image == 7).all()
    assert label == 1
    with pytest.raises(DataError, match="found none"):
        phalanx.data.csv("memory://shop/*.tsv")


def test_when_nothing_is_readable_it_says_so():
    class Source:
        def __len__(self):
            return 4

        def __getitem__(self, row):
            if self.broken:
                raise ValueError("rotten")
            return row

        broken = False

    made = Source()
    dataset = phalanx.data.pipeline(made, 2, on_error="skip")
    made.broken = True
    with pytest.raises(tf.errors.OpError, match=r"none of 4 samples readable.*rotten"):
        list(dataset)


def test_workers_that_see_other_samples_are_distinguished():
    def fingerprint(samples):
        return resolve_source(samples).fingerprint

    class ByChance(list):
        def __getitem__(self, row):
            return np.random.default_rng().normal(size=3)

    assert fingerprint([1, 2, 3]) == fingerprint([1, 2, 3])
    assert len({fingerprint(s) for s in ([1, 2, 3], [1, 2, 4], [1, 2, 2, 3])}) == 3
    assert fingerprint(ByChance([1, 2])) == fingerprint(ByChance([1, 2]))
