"""Errors that come of several workers running one line: distinguished from others, and named."""

import gzip
import pickle
import tarfile
import zipfile

import pytest

from phalanx.worker.process_exit import record_failure
from phalanx.worker.shared_lines import advice_about_files, is_half_read


def caught(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def read_zip(path):
    with zipfile.ZipFile(path) as stream:
        stream.testzip()


def read_tar(path):
    with tarfile.open(path) as stream:
        [
            stream.extractfile(member).read() for member in stream
        ]  # extractall asks 3.11.4 for a filter


def read_gzip(path):
    with gzip.open(path) as stream:
        stream.read()


def read_pickle(path):
    with path.open("rb") as stream:
        pickle.load(stream)


def read_arrays(path):
    import numpy as np

    with path.open("rb") as stream:
        np.load(stream)


def write_zip(path):
    with zipfile.ZipFile(path, "w") as stream:
        stream.writestr("a", bytes(5000))


def write_tar(path):
    path.with_suffix(".txt").write_bytes(bytes(range(256)) * 40)
    with tarfile.open(path, "w:gz") as stream:
        stream.add(path.with_suffix(".txt"))


def write_gzip(path):
    path.write_bytes(gzip.compress(bytes(range(256)) * 40))


def write_pickle(path):
    path.write_bytes(pickle.dumps(list(range(1000))))


def write_arrays(path):
    import numpy as np

    with path.open("wb") as stream:
        np.savez(stream, a=np.arange(1000))


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (write_zip, read_zip),
        (write_tar, read_tar),
        (write_gzip, read_gzip),
        (write_pickle, read_pickle),
        (write_arrays, read_arrays),
    ],
)
def test_half_a_file_is_known_by_what_its_reader_raises(write, read, tmp_path):
    path = tmp_path / "file"
    write(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert is_half_read(caught(read, path))


@pytest.mark.parametrize(
    "error",
    [
        OSError("Unable to synchronously open file (truncated file: eof = 1, stored_eof = 2)"),
        OSError("image file is truncated (3 bytes not processed)"),
    ],
)
def test_h5py_and_pillow_say_it_in_words(error):
    assert is_half_read(error)


@pytest.mark.parametrize(
    "error",
    [ValueError("shapes differ"), OSError("no space left"), KeyError("truncated"), TypeError("x")],
)
def test_other_errors_are_none_of_that(error):
    assert not is_half_read(error)
    assert advice_about_files(error, 2) == ""


def test_the_users_line_is_named(tmp_path):
    error = caught(tmp_path.mkdir)
    advice = advice_about_files(error, 3)
    assert advice.startswith("All 3 workers run line ")
    assert "of test_shared_lines.py: function(*args)\n" in advice
    assert "with phalanx.local_chief_first():" in advice
    assert record_failure(error, rank=0, now=0.0, workers=3).advice == advice


def test_a_worker_alone_is_not_reported_others(tmp_path):
    assert advice_about_files(caught(tmp_path.mkdir), 1) == ""
