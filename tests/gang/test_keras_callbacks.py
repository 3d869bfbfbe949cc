"""Keras's own callbacks under several workers: one device's files, decisions and numbers."""

import os
import re

import numpy as np
import pytest
from callback_cases import CASES, files_in, run_all

from phalanx.observe.event_files import read_scalars
from phalanx.testing import run_alone, run_gang

NAMES = sorted(CASES)
UNIQUE = ("progbar_logger", "remote_monitor", "orbax_checkpoint")
"""Whose files have names that no other run would give them."""


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    root = tmp_path_factory.mktemp("one-device")
    return run_alone(run_all, args=(NAMES, str(root)), deadline=600), root


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.full)])
def gang(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(f"gang-of-{request.param}")
    return run_gang(run_all, request.param, args=(NAMES, str(root)), deadline=600), root


def assert_close(got, expected, where):
    if isinstance(expected, dict):
        assert set(got) == set(expected), where
        for key, value in expected.items():
            assert_close(got[key], value, f"{where}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), where
        for i, pair in enumerate(zip(got, expected, strict=True)):
            assert_close(*pair, f"{where}[{i}]")
    elif isinstance(expected, (str, type(None), bytes)):
        assert got == expected, where
    else:
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("name", NAMES)
def test_workers_agree_and_come_out_as_one_device(name, gang, one_device):
    results, _ = gang
    first, *others = [worker[name] for worker in results]
    for other in others:
        np.testing.assert_equal(other, first)
    assert_close(first, one_device[0][name], name)


def without_unique_parts(name):
    """A file's name without the time, process and host in it."""
    return re.sub(r"tfevents.*|profile/.*/", "", name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNIQUE])
def test_the_files_are_those_of_one_device(name, gang, one_device):
    found, expected = files_in(gang[1] / name), files_in(one_device[1] / name)
    names = [sorted(map(without_unique_parts, files)) for files in (found, expected)]
    assert names[0] == names[1]
    assert_close(*[{n: v for n, v in f.items() if v is not None} for f in (found, expected)], name)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_tensorboard_shows_what_it_shows_on_one_device(split, gang, one_device):
    found, expected = (
        read_scalars(root / "tensorboard" / split) for root in (gang[1], one_device[1])
    )
    assert_close(
        {tag: points for tag, points in found.items() if points},
        {tag: points for tag, points in expected.items() if points},
        split,
    )


def test_one_worker_reports_to_a_remote_monitor(gang, one_device):
    found, expected = (files_in(root / "remote_monitor") for root in (gang[1], one_device[1]))
    assert len({name.split("-")[1] for name in found}) == 1
    assert_close(sorted_by_epoch(found), sorted_by_epoch(expected), "remote_monitor")


def sorted_by_epoch(found):
    return sorted(found.values(), key=lambda sent: sent["epoch"])


@pytest.mark.skipif("orbax_checkpoint" not in CASES, reason="orbax-checkpoint is not installed")
def test_orbax_keeps_what_it_keeps_on_one_device(gang, one_device):
    kept = [sorted(os.listdir(root / "orbax_checkpoint")) for root in (gang[1], one_device[1])]
    assert kept[0] == kept[1] == ["12", "15"]


def test_one_worker_shows_progress(gang):
    shown = sorted(files_in(gang[1] / "progbar_logger").values())
    assert [heads for heads in shown if heads] == [["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]]
