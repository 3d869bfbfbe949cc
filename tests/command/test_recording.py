"""What a real `phalanx run` leaves in its records, with nothing asked for."""

import itertools

import pytest

from phalanx.monitoring.event_log import launcher_records_path, read_records, records_path

SCRIPT = """
import keras, numpy as np, time
from pathlib import Path
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(66, 4)).astype("float32")

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            self.model.stop_training = True

Path("saved").mkdir(exist_ok=True)
model.fit(
    x, x[:, :1], batch_size=4, epochs=9, verbose=0, validation_data=(x, x[:, :1]),
    callbacks=[Slow(), keras.callbacks.ModelCheckpoint("saved/last.keras")],
)
model.fit(x, x[:, :1], batch_size=33, epochs=1, verbose=0)
say("weights", [w.numpy().tolist() for w in model.weights])
"""


@pytest.fixture(scope="module")
def run(command_in, tmp_path_factory):
    command = command_in(tmp_path_factory.mktemp("recording"))
    finished = command.run("--workers", "2", "--name", "it", command.script(SCRIPT))
    assert finished.code == 0, finished.out + finished.err
    return command.directory / "runs" / "it"


def records(run, rank, kind=None):
    path = launcher_records_path(run) if rank is None else records_path(run, rank)
    found = read_records(path)
    assert found.damaged == found.newer == []
    return [record for record in found.records if kind in (None, record["kind"])]


def kinds(run, rank):
    return [record["kind"] for record in records(run, rank)]


def test_the_launcher_begins_and_ends(run):
    assert kinds(run, None) == [
        "run_start", "attempt_start", "worker_exit", "worker_exit", "run_end",
    ]  # fmt: skip
    pids = {worker["rank"]: worker["pid"] for worker in records(run, None)[1]["workers"]}
    assert pids == {rank: records(run, rank, "worker_start")[0]["pid"] for rank in range(2)}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_says_who_it_is_and_how_it_ended(run, rank):
    (start,), (end,) = records(run, rank, "worker_start"), records(run, rank, "worker_end")
    assert (start["rank"], start["workers"], start["replicas"]) == (rank, 2, 2)
    assert start["devices"] == ["CPU:0"]
    assert {"python", "keras", "numpy"} <= set(start["versions"])
    assert (end["ok"], end["error"]) == (True, None)
    assert kinds(run, rank)[-1] == "worker_end"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_heart_beats_from_the_start_every_two_seconds(run, rank):
    beats = records(run, rank, "heartbeat")
    assert kinds(run, rank)[0] == "heartbeat"
    assert beats[0]["phase"] == "start"
    assert beats[0]["step"] is None
    assert all(beat["memory_bytes"] > 1e6 for beat in beats)
    seconds = beats[-1]["t"] - beats[0]["t"]
    moments = 2 * len(("fit starts", "first step", "fit ends")) + len(("script ends",))
    assert seconds / 4 < len(beats) <= seconds / 1.5 + moments + 1
    for before, after in itertools.pairwise(beats):
        spent = sum(after["phase_totals"].values()) - sum(before["phase_totals"].values())
        assert spent == pytest.approx(after["t"] - before["t"], abs=0.1)
    # The first fit takes more than two seconds, whatever it was at when its heart beat.
    of_training = {"input", "compute", "callbacks", "checkpoint", "validation"}
    assert of_training & {beat["phase"] for beat in beats}
    assert beats[-1]["step"] > 0


def test_the_chief_says_once_what_a_step_sends(run):
    (plan,) = records(run, 0, "reduction_plan")
    (bucket,) = plan["buckets"]
    assert (plan["bytes"], bucket["dtype"], plan["sparse"]) == (4 * 49, "float32", [])
    assert records(run, 1, "reduction_plan") == []


@pytest.mark.parametrize("rank", [0, 1])
def test_every_fit_is_reported_by_every_worker(run, rank):
    first, second = records(run, rank, "fit_start")
    assert (first["fit"], first["epochs"], first["initial_epoch"], first["steps"]) == (0, 9, 0, 17)
    assert (first["parameters"], first["optimizer"]) == (49, "SGD")
    assert (second["fit"], second["steps"]) == (1, 2)
    ends = records(run, rank, "fit_end")
    assert [(end["fit"], end["step"], end["epoch"]) for end in ends] == [(0, 51, 2), (1, 53, 0)]
    assert ends[0]["seconds"] > 51 * 0.05


def test_the_chief_reports_steps_about_once_a_second(run):
    steps = records(run, 0, "train_metrics")
    assert len(steps) >= 2
    assert all(set(step["logs"]) == {"loss"} for step in steps)
    assert all(step["learning_rate"] == pytest.approx(0.01) for step in steps)
    assert [step["step"] for step in steps] == sorted({step["step"] for step in steps})
    in_first_fit = [step for step in steps if step["step"] <= 51]
    assert all(s["step"] == 17 * s["epoch"] + s["batch"] + 1 for s in in_first_fit)
    times = [step["t"] for step in in_first_fit]
    # A record's time is a little later than the moment at which it was due.
    assert all(after - before > 0.5 for before, after in itertools.pairwise(times))


def test_the_chief_reports_epochs_checkpoints_and_the_stop(run):
    epochs = records(run, 0, "epoch_metrics")
    assert [(e["step"], e["epoch"]) for e in epochs] == [(17, 0), (34, 1), (51, 2), (53, 0)]
    assert set(epochs[0]["logs"]) == {"loss", "val_loss"}
    assert epochs[1]["seconds"] > 17 * 0.05
    (stop,) = records(run, 0, "early_stop")
    assert (stop["step"], stop["epoch"]) == (51, 2)
    saved = records(run, 0, "checkpoint")
    assert [(s["step"], s["epoch"]) for s in saved] == [(17, 0), (34, 1), (51, 2)]
    assert all(s["bytes"] > 1000 and s["path"] == "saved/last.keras" for s in saved)


def test_others_leave_to_the_chief_what_is_the_same_on_all(run):
    assert not {"train_metrics", "epoch_metrics", "early_stop", "checkpoint"} & set(kinds(run, 1))


@pytest.mark.parametrize("rank", [0, 1])
def test_throughput_is_measured_on_every_worker(run, rank):
    found = records(run, rank, "throughput")
    # The first three steps warm up; an epoch that holds less than a second joins the next.
    assert next(one["steps"] for one in found) in (14, 31)
    assert found[-1]["step"] <= 51, "the second fit is all warm-up"
    assert sum(one["steps"] for one in found) == 51 - 3
    assert sum(one["samples"] for one in found) == 3 * 66 - 3 * 4
    for one in found:
        assert one["samples_per_second"] == pytest.approx(one["samples"] / one["seconds"])
        assert 0.05 < one["step_seconds"]["p50"] <= one["step_seconds"]["p95"]
        fractions = one["time_fractions"]
        assert set(fractions) == {"input", "compute", "communication", "callbacks", "checkpoint"}
        assert sum(share for share in fractions.values() if share is not None) == pytest.approx(1)
        slept = 0.05 * (one["steps"] - 1)  # at least, whatever else a loaded machine adds
        assert fractions["callbacks"] * one["seconds"] > 0.9 * slept
        assert fractions["checkpoint"] >= 0
        assert one["memory_bytes"] > 1e8
    assert any(one["time_fractions"]["checkpoint"] > 0 for one in found) == (rank == 0)


def test_a_worker_that_fails_says_how(command):
    finished = command.run(
        "--workers", "1", "--name", "bad", command.script("raise ValueError('no such file')")
    )
    assert finished.code == 1
    run = command.directory / "runs" / "bad"
    (end,) = records(run, 0, "worker_end")
    assert (end["ok"], end["error"]) == (False, "ValueError: no such file")
    (left,) = records(run, None, "worker_exit")
    assert (left["code"], left["summary"]) == (1, end["error"])
    assert records(run, None, "run_end")[0]["exit_code"] == 1
