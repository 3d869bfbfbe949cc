"""Keras's own callbacks under several workers: one device's files, decisions and numbers."""

import functools
import os
import re

import numpy as np
import pytest
from callback_cases import CASES, files_in, run_all

from phalanx.monitoring.tensorboard_files import read_scalars
from phalanx.testing import run_single, run_workers

UNIQUE = ("progbar_logger", "remote_monitor", "orbax_checkpoint")
"""Whose files have names that no other run would give them."""

LATER = {
    "model_checkpoint_best_weights", "backup_and_restore_is_ended_at_the_end",
    "tensorboard_with_embeddings", "learning_rate_scheduler", "terminate_on_nan",
    "lambda_callback", "remote_monitor", "orbax_checkpoint", "progbar_logger", "swap_ema_weights",
    "model_checkpoint_every_third_step",
} & set(CASES)  # fmt: skip
"""The cases that `make test` leaves to `make test-full`."""

GROUPS = {"now": sorted(set(CASES) - LATER), "later": sorted(LATER), "all": sorted(CASES)}
OF_WORKERS = [(2, "now"), (2, "later"), (3, "all")]


def cases(names=CASES):
    """(workers, group, name) of every case among `names`, `full` where `make test` leaves it."""
    return [
        pytest.param(workers, group, name, marks=() if group == "now" else pytest.mark.full)
        for workers, group in OF_WORKERS
        for name in GROUPS[group]
        if name in names
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained(workers, group)`: what each worker has of each case of the group, and the files."""

    @functools.cache
    def run(workers, group):
        root = tmp_path_factory.mktemp(f"{workers}-{group}")
        args = (GROUPS[group], str(root))
        if workers == 1:
            return [run_single(run_all, args=args, deadline=600)], root
        return run_workers(run_all, workers, args=args, deadline=600), root

    return run


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


@pytest.mark.parametrize(("workers", "group", "name"), cases())
def test_workers_agree_and_come_out_as_one_device(workers, group, name, trained):
    first, *others = [worker[name] for worker in trained(workers, group)[0]]
    for other in others:
        np.testing.assert_equal(other, first)
    assert_close(first, trained(1, group)[0][0][name], name)


def without_unique_parts(name):
    """A file's name without the time, process and host in it."""
    return re.sub(r"tfevents.*|profile/.*/", "", name)


@pytest.mark.parametrize(("workers", "group", "name"), cases(set(CASES) - set(UNIQUE)))
def test_the_files_are_those_of_one_device(workers, group, name, trained):
    found, expected = (files_in(trained(count, group)[1] / name) for count in (workers, 1))
    names = [sorted(map(without_unique_parts, files)) for files in (found, expected)]
    assert names[0] == names[1]
    assert_close(*[{n: v for n, v in f.items() if v is not None} for f in (found, expected)], name)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize(("workers", "group", "name"), cases({"tensorboard"}))
def test_tensorboard_shows_what_it_shows_on_one_device(workers, group, name, split, trained):
    found, expected = (
        read_scalars(trained(count, group)[1] / name / split) for count in (workers, 1)
    )
    assert_close(
        {tag: points for tag, points in found.items() if points},
        {tag: points for tag, points in expected.items() if points},
        split,
    )


@pytest.mark.parametrize(("workers", "group", "name"), cases({"remote_monitor"}))
def test_one_worker_reports_to_a_remote_monitor(workers, group, name, trained):
    found, expected = (files_in(trained(count, group)[1] / name) for count in (workers, 1))
    assert len({name.split("-")[1] for name in found}) == 1
    assert_close(sorted_by_epoch(found), sorted_by_epoch(expected), "remote_monitor")


def sorted_by_epoch(found):
    return sorted(found.values(), key=lambda sent: sent["epoch"])


@pytest.mark.parametrize(("workers", "group", "name"), cases({"orbax_checkpoint"}))
def test_orbax_keeps_what_it_keeps_on_one_device(workers, group, name, trained):
    kept = [sorted(os.listdir(trained(count, group)[1] / name)) for count in (workers, 1)]
    assert kept[0] == kept[1] == ["12", "15"]


@pytest.mark.parametrize(("workers", "group", "name"), cases({"progbar_logger"}))
def test_one_worker_shows_progress(workers, group, name, trained):
    shown = sorted(files_in(trained(workers, group)[1] / name).values())
    assert [heads for heads in shown if heads] == [["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]]
