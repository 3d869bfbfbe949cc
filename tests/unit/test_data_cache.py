"""A cache on disk gives the samples of its own source and map, and of no other."""

import functools
import os
import sys
import threading
import types
from pathlib import Path

import fsspec
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import phalanx
from phalanx.data.pipelines.cache import DiskCache
from phalanx.data.sources.protocol import IndexedSource
from phalanx.errors import ConfigurationError


@pytest.fixture
def samples(tmp_path):
    """What a pipeline gives in order, through one cache for all."""

    def of(source, **options):
        options = {"cache": f"disk:{tmp_path}/cache", "shuffle": False, **options}
        dataset = phalanx.data.pipeline(source, 2, **options)
        batches = [[one.numpy().tolist() for one in tf.nest.flatten(batch)] for batch in dataset]
        return [sample for batch in batches for sample in zip(*batch, strict=True)]

    return of


def keys(tmp_path):
    """The directories of the cache: one for each key."""
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


def one_file(tmp_path, values, **options):
    """A source of one TFRecord file, which is written again each time."""
    phalanx.data.write_tfrecords(values, str(tmp_path / "x"), shards=1)
    return phalanx.data.tfrecords(str(tmp_path / "*.tfrecord"), **options)


def image_directory(top, value):
    (top / "cat").mkdir(parents=True)
    for number in range(2):
        Image.new("RGB", (2, 2), (value, value, value)).save(top / "cat" / f"{number}.bmp")
    return top


def first_values(images):
    """For each image its first value and its label."""
    return [(image[0][0][0], label) for image, label in images]


class TestSources:
    @pytest.mark.parametrize("index", [True, False])
    def test_two_files_with_records_of_the_same_lengths(self, tmp_path, samples, index):
        found = {}
        for name, values in (("train", [1, 2, 3]), ("valid", [7, 8, 9])):
            (tmp_path / name).mkdir()
            found[name] = samples(one_file(tmp_path / name, np.array(values), index=index))
        assert found == {"train": [(1,), (2,), (3,)], "valid": [(7,), (8,), (9,)]}

    @pytest.mark.parametrize("index", [True, False])
    def test_a_file_that_is_written_again(self, tmp_path, samples, index):
        for values in ([1, 2], [3, 4]):
            source = one_file(tmp_path, np.array(values), index=index)
            assert samples(source) == [(value,) for value in values]

    @pytest.mark.parametrize("index", [True, False])
    def test_features_in_another_order(self, tmp_path, samples, index):
        arrays = {"a": np.arange(2), "b": np.arange(5, 7)}
        for names, expected in ((("a", "b"), (0, 5)), (("b", "a"), (5, 0))):
            source = one_file(tmp_path, arrays, index=index, supervised=names)
            assert samples(source)[0] == expected

    def test_a_link_that_leads_to_another_file(self, tmp_path, samples):
        link = tmp_path / "link.tfrecord"
        for number in (1, 2):
            (tmp_path / str(number)).mkdir()
            one_file(tmp_path / str(number), np.array([number] * 2))
            (file,) = (tmp_path / str(number)).glob("*.tfrecord")
            os.utime(file, ns=(0, 1))
            link.unlink(missing_ok=True)
            link.symlink_to(file)
            source = phalanx.data.tfrecords(
                str(link), features={"x": tf.io.FixedLenFeature([], tf.int64)}, remember=False
            )
            assert samples(source, map=lambda x: x["x"]) == [(number,)] * 2

    # fsspec of 2025 does not close the files that it copies.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_copies_have_the_key_of_their_content(self, tmp_path, samples):
        memory = fsspec.filesystem("memory")
        for number, value in enumerate((1, 2, 2)):
            one_file(tmp_path, np.array([value] * 2))
            memory.put(str(tmp_path / "x-00000-of-00001.tfrecord"), f"/kept/{number}")
            source = phalanx.data.tfrecords(
                f"memory://kept/{number}", features={"x": tf.io.FixedLenFeature([], tf.int64)}
            )
            assert samples(source) == [(value,)] * 2
        assert len(keys(tmp_path)) == 2

    def test_a_storage_without_times_counts_by_content(self, samples):
        for value in (1, 2):
            for old in tf.io.gfile.glob("ram://kept/*"):
                tf.io.gfile.remove(old)
            files = phalanx.data.write_tfrecords(np.array([value] * 2), "ram://kept/x", shards=1)
            assert samples(phalanx.data.tfrecords(files)) == [(value,)] * 2

    def test_a_row_in_the_middle_of_an_array(self, samples):
        for value in (17, -1):
            x = np.arange(40)
            x[17] = value
            assert samples(x)[17] == (value,)
            assert samples((x, x))[17] == (value, value)

    def test_text_that_is_divided_otherwise(self, samples):
        for texts in ([b"a", b"bc"], [b"ab", b"c"]):
            assert samples(np.array(texts, object)) == [(text,) for text in texts]

    def test_an_item_in_the_middle_of_a_list(self, samples):
        for value in (3, 33):
            assert samples([0, 1, value, 3, 4, 5, 6])[2] == (value,)
            assert samples([("a", 1), ("b", value), *[("c", 2)] * 5])[1] == (b"b", value)

    def test_images_of_another_directory(self, tmp_path, samples):
        for name, value in (("a", 10), ("b", 20)):
            source = str(image_directory(tmp_path / name, value))
            assert first_values(samples(source)) == [(value, 0)] * 2

    def test_an_image_that_is_written_again(self, tmp_path, samples):
        directory = image_directory(tmp_path / "a", 10)
        assert first_values(samples(str(directory))) == [(10, 0)] * 2
        other = image_directory(tmp_path / "b", 77) / "cat" / "1.bmp"
        os.replace(other, directory / "cat" / "1.bmp")
        assert first_values(samples(str(directory))) == [(10, 0), (77, 0)]

    def test_images_of_a_storage_that_fsspec_reads(self, tmp_path, samples):
        memory = fsspec.filesystem("memory")
        for value in (10, 20):
            directory = image_directory(tmp_path / str(value), value)
            memory.put(str(directory / "cat" / "0.bmp"), "/images/cat/0.bmp")
            source = phalanx.data.images("memory://images")
            assert first_values(samples(source)) == [(value, 0)]

    def test_images_in_another_size(self, tmp_path, samples):
        directory = image_directory(tmp_path / "a", 10)
        for size in (1, 3):
            ((image, _), _) = samples(phalanx.data.images(directory, size=(size, size)))
            assert len(image) == size

    def test_a_table(self, tmp_path, samples):
        path = tmp_path / "x.csv"
        for value in (3, 4):
            path.write_text(f"a,b\n1,2\n{value},5\n1,2\n")
            assert samples(str(path))[1] == (value, 5)

    def test_a_mixture(self, samples):
        for value in (17, -1):
            x = np.arange(40)
            x[17] = value
            mixed = phalanx.data.mix([np.arange(100, 140), x], [1, 1])
            assert (value,) in samples(mixed, shuffle=True)

    def test_array_records(self, tmp_path, samples):
        module = pytest.importorskip("array_record.python.array_record_module")
        for value in (b"1", b"2"):
            writer = module.ArrayRecordWriter(str(tmp_path / "x.array_record"), "group_size:1")
            for _ in range(2):
                writer.write(value)
            writer.close()
            assert samples(str(tmp_path / "x.array_record")) == [(value,)] * 2


SCALE = 1
TABLE = {"factor": np.ones(3, np.int64)}


class Times:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    def method(self, x):
        return x * self.factor


def times(x, factor=1):
    return x * factor


def times_keyword(x, *, factor=1):
    return x * factor


def by_global(x):
    return x * SCALE


def by_global_in_a_function(x):
    def inner(y):
        return by_global(y)

    return inner(x)


def by_table(x):
    return x * TABLE["factor"][2]


def by_closure(factor):
    return lambda x: x * factor


def by_default(factor):
    def function(x, factor=factor):
        return x * factor

    return function


def by_keyword_default(factor):
    def function(x, *, factor=factor):
        return x * factor

    return function


def by_nested_code(factor):
    space = {}
    exec(
        f"def function(x):\n    def inner(y):\n        return y * {factor}\n    return inner(x)",
        space,
    )
    return space["function"]


def by_attribute(factor):
    def function(x):
        return x * function.factor

    function.factor = factor
    return function


def by_class(factor):
    class Scale:
        FACTOR = factor

        def __call__(self, x):
            return x * self.FACTOR

    return Scale()


def by_base_class(factor):
    class Base:
        FACTOR = factor

    class Scale(Base):
        def __call__(self, x):
            return x * self.FACTOR

    return Scale()


def by_decorator(factor):
    def multiplied(function):
        @functools.wraps(function)
        def wrapped(*arguments):
            return function(*arguments) * factor

        return wrapped

    return multiplied(lambda x: x)


def by_module(factor):
    module = types.ModuleType("scales_of_a_test")
    exec(f"def scale(x):\n    return x * {factor}", module.__dict__)
    sys.modules[module.__name__] = module
    return lambda x: module.scale(x)


def by_import(factor):
    by_module(factor)

    def function(x):
        from scales_of_a_test import scale

        return scale(x)

    return function


FUNCTIONS = {
    "closure": by_closure,
    "default": by_default,
    "keyword default": by_keyword_default,
    "nested code": by_nested_code,
    "attribute of the function": by_attribute,
    "partial by place": lambda factor: functools.partial(lambda f, x: times(x, f), factor),
    "partial by name": lambda factor: functools.partial(times_keyword, factor=factor),
    "partial of a default": lambda factor: functools.partial(times, factor=factor),
    "callable object": Times,
    "bound method": lambda factor: Times(factor).method,
    "attribute of a class": by_class,
    "attribute of a base class": by_base_class,
    "array in a closure": lambda factor: by_closure(np.array(factor)),
    "tensor in a closure": lambda factor: by_closure(tf.constant(factor, tf.int64)),
    "function in a closure": lambda factor: (lambda f: lambda x: f(x))(by_closure(factor)),
    "decorator": by_decorator,
    "tf.function": lambda factor: tf.function(by_closure(factor)),
    "module of one's own": by_module,
    "import in the function": by_import,
}


class TestFunctions:
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_another(self, samples, tmp_path, name):
        for factor in (1, 3, 1):
            found = samples(np.arange(3), map=FUNCTIONS[name](factor))
            assert found == [(n * factor,) for n in range(3)]
        assert len(keys(tmp_path)) == 2, "the same function has the same key"

    @pytest.mark.parametrize("function", [by_global, by_global_in_a_function])
    def test_another_global(self, samples, monkeypatch, function):
        for factor in (1, 3):
            monkeypatch.setitem(globals(), "SCALE", factor)
            assert samples(np.arange(3), map=function) == [(n * factor,) for n in range(3)]

    def test_another_value_in_the_array_of_a_global(self, samples, monkeypatch):
        for factor in (1, 3):
            monkeypatch.setitem(TABLE, "factor", np.array([1, 1, factor]))
            assert samples(np.arange(3), map=by_table) == [(n * factor,) for n in range(3)]

    def test_another_function_that_a_global_names(self, samples, monkeypatch):
        assert samples(np.arange(3), map=by_global_in_a_function) == [(0,), (1,), (2,)]
        monkeypatch.setitem(globals(), "by_global", lambda x: x + 5)
        assert samples(np.arange(3), map=by_global_in_a_function) == [(5,), (6,), (7,)]


class OfAUser(IndexedSource):
    num_samples = 2
    element_spec = tf.TensorSpec([], tf.int64)

    def read(self, row):
        return row


class Items:
    def __len__(self):
        return 2

    def __getitem__(self, row):
        return row


def reads_a_file(path):
    return tf.io.read_file(path)


LOCK = threading.Lock()
VARIABLES = {}


def uses_a_lock(x):
    with LOCK:
        return x


def uses_a_variable(x):
    return x + VARIABLES["a"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("source", "options", "message"),
        [
            (Items(), {}, "the source is a Items, and what its __getitem__ reads is not known"),
            (OfAUser(), {}, "the source is a OfAUser, which does not say"),
            (np.arange(2), {"map": uses_a_lock}, "map, function 'uses_a_lock', global 'LOCK' is a"),
            (
                np.arange(2),
                {"map": reads_a_file},
                "map, function 'reads_a_file', global 'tf' uses tensorflow.read_file",
            ),
        ],
    )
    def test_what_has_no_key(self, samples, source, options, message):
        with pytest.raises(ConfigurationError, match=message) as raised:
            samples(source, **options)
        assert 'cache_key="..."' in str(raised.value)

    def test_a_variable(self, samples, monkeypatch):
        monkeypatch.setitem(VARIABLES, "a", tf.Variable(1, dtype=tf.int64))
        with pytest.raises(ConfigurationError, match="item 'a' is a ResourceVariable, whose"):
            samples(np.arange(2), map=uses_a_variable)

    def test_a_key_by_hand(self, samples, tmp_path):
        for _ in range(2):
            assert samples(Items(), cache_key="a", map=uses_a_lock) == [(0,), (1,)]
        assert samples(np.arange(5, 7), cache_key="b") == [(5,), (6,)]
        assert len(keys(tmp_path)) == 2
        assert samples(np.arange(7, 9), cache_key="b") == [(5,), (6,)], "as asked"
        assert len(samples(np.arange(3), cache_key="b")) == 3
        assert samples(Items(), cache="memory") == [(0,), (1,)]


class TestFiles:
    """What writers and damage do to the files."""

    def test_writers_at_the_same_time_leave_whole_samples(self, tmp_path):
        contents = [bytes([n]) * 50_000 for n in range(8)]
        caches = [DiskCache(str(tmp_path), "key") for _ in contents]
        seen = set()

        def write(cache, content):
            for _ in range(30):
                assert cache._write(3, content)
                seen.add(cache._read(3))

        threads = [
            threading.Thread(target=write, args=pair) for pair in zip(caches, contents, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen <= set(contents)
        assert len(seen) > 1
        assert list((tmp_path / "key" / "unfinished").iterdir()) == []

    def test_a_flipped_bit_and_another_sample_are_found(self, tmp_path):
        cache = DiskCache(str(tmp_path), "key")
        cache._write(3, b"content")
        path = Path(cache._path(3))
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            assert cache._read(3) == b""
        path.write_bytes(whole)
        assert cache._read(3) == b"content"
        os.replace(path, cache._path(4))
        assert cache._read(4) == b"", "a sample in the place of another"

    def test_a_full_disk_leaves_nothing_half_written(self, tmp_path, monkeypatch, caplog):
        cache = DiskCache(str(tmp_path), "key")

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        assert not cache._write(3, b"content")
        assert "takes no more" in caplog.text
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    def test_what_a_killed_writer_left_is_removed_after_a_day(self, tmp_path):
        unfinished = tmp_path / "key" / "unfinished"
        unfinished.mkdir(parents=True)
        (unfinished / "old").touch()
        os.utime(unfinished / "old", (0, 0))
        (unfinished / "new").touch()
        DiskCache(str(tmp_path), "key")
        assert [path.name for path in unfinished.iterdir()] == ["new"]
