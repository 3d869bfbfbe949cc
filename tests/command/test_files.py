"""Scripts that write files on every worker, as they do on one device."""

import http.server
import io
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import suppress

import pytest

FULL = pytest.mark.full

STATE = """
import os
import keras
import numpy as np
import tensorflow as tf

rank = getattr(tf.distribute.get_strategy().cluster_resolver, "task_id", 0)
x = np.random.default_rng(0).random((24, 3)).astype("float32")

def build():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model

def values(model):
    return [w.tolist() for w in model.get_weights()]

model = build()
steps, large = tf.Variable(0), tf.Variable(tf.zeros([100_000]))  # written for a while
checkpoint = tf.train.Checkpoint(
    model=model, optimizer=model.optimizer, steps=steps, large=large
)
manager = tf.train.CheckpointManager(checkpoint, "managed", max_to_keep=2)
"""

SAVES = f"""{STATE}
import time
say("restored", manager.restore_or_initialize())
for epoch in range(4):
    model.fit(x, x[:, :1], batch_size=8, verbose=0)
    steps.assign_add(3)
    time.sleep(0.2 * (rank == epoch))  # each comes late once
    path = manager.save()
    say(f"there-{{epoch}}", tf.train.latest_checkpoint("managed"))
    checkpoint.read(path).assert_existing_objects_matched()
say("kept", manager.checkpoints)
say("saved", [checkpoint.save("saves/own") for _ in range(80)])
say("written", checkpoint.write("written/here"))
checkpoint.read("written/here").assert_consumed()
checkpoint.restore(tf.train.latest_checkpoint("saves")).assert_consumed()

# What tutorials on MultiWorkerMirroredStrategy do: a place of its own for each that is no chief.
own = "own" if rank == 0 else f"own/worker-{{rank}}"
tf.train.CheckpointManager(checkpoint, own, max_to_keep=1).save()
say("own", tf.train.latest_checkpoint(own))
if rank == 0:
    checkpoint.write("alone/by-the-chief")
checkpoint.write("ram://of-one-process/here")
say("memory", len(tf.io.gfile.glob("ram://of-one-process/here.*")))

model.export("exported", verbose=False)
exported = tf.saved_model.load("exported")
say("exported", exported.serve(x[:2]).numpy().tolist())
module = tf.Module()
module.steps = steps
tf.saved_model.save(module, "module/1")
say("module", int(tf.saved_model.load("module/1").steps))

with tf.summary.create_file_writer("logs").as_default():
    tf.summary.scalar("loss", 1.0, step=1)
say("values", values(model))
say("predicted", model.predict(x[:2], verbose=0).tolist())
"""

RESTORES = f"""{STATE}
say("restored", manager.restore_or_initialize())
model.optimizer.build(model.trainable_variables)
checkpoint.restore("saves/own-84").assert_consumed()
say("steps", int(steps))
say("values", values(model))
"""


@pytest.fixture(scope="module")
def saved(command_in, tmp_path_factory):
    """A directory into which two workers have written, and what they said."""
    command = command_in(tmp_path_factory.mktemp("saved"))
    finished = command.run("--workers", "2", "--seed", "5", "--tee", "all", command.script(SAVES))
    assert finished.code == 0, finished.err
    return command, [finished.output(rank) for rank in range(2)]


def test_workers_save_to_one_path_and_all_restore_from_it(saved):
    command, (chief, other) = saved
    assert chief["restored"] is other["restored"] is None
    for epoch in range(4):
        assert chief[f"there-{epoch}"] == other[f"there-{epoch}"] == f"managed/ckpt-{epoch + 1}"
    assert chief["kept"] == other["kept"] == ["managed/ckpt-3", "managed/ckpt-4"]
    assert chief["saved"] == other["saved"] == [f"saves/own-{n}" for n in range(5, 85)]
    assert chief["written"] == other["written"] == "written/here"
    assert chief["values"] == other["values"]
    assert files_in(command.directory / "managed") == [
        "checkpoint",
        *(f"ckpt-{n}.{end}" for n in (3, 4) for end in ("data-00000-of-00001", "index")),
    ]
    assert files_in(command.directory / "written") == ["here.data-00000-of-00001", "here.index"]


def test_a_path_of_a_workers_own_is_its_own(saved):
    command, (chief, other) = saved
    assert chief["own"] == "own/ckpt-85"
    assert other["own"] == "own/worker-1/ckpt-85"
    assert "by-the-chief.index" in files_in(command.directory / "alone")
    assert chief["memory"] == other["memory"] == 2


def test_exported_models_are_complete_for_all(saved):
    _, (chief, other) = saved
    assert chief["exported"] == other["exported"]
    assert chief["exported"] == [
        [pytest.approx(v, rel=1e-5, abs=1e-6)] for (v,) in chief["predicted"]
    ]
    assert chief["module"] == other["module"] == 12


def test_the_chief_alone_writes_summaries(saved):
    command, _ = saved
    (events,) = files_in(command.directory / "logs")
    assert events.startswith("events.out.tfevents.")


@FULL
@pytest.mark.parametrize("workers", [1, 3])
def test_other_numbers_of_workers_restore(saved, workers):
    command, (chief, _) = saved
    script = command.script(RESTORES, "restore.py")
    finished = command.run("--workers", str(workers), "--tee", "all", script)
    assert finished.code == 0, finished.err
    for rank in range(workers):
        output = finished.output(rank)
        assert output["restored"] == "managed/ckpt-4"
        assert output["steps"] == 12
        assert output["values"] == chief["values"]


@FULL
def test_plain_tensorflow_restores(saved):
    command, (chief, _) = saved
    script = command.script(RESTORES, "restore.py")
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    words = [sys.executable, script]
    out = subprocess.check_output(words, cwd=command.directory, env=environment, text=True)
    output = dict(line.split(" ", 2)[1:] for line in out.splitlines() if line.startswith("SAY "))
    assert json.loads(output["restored"]) == "managed/ckpt-4"
    assert json.loads(output["values"]) == chief["values"]


DOWNLOADS = """
import os
import keras
import tensorflow as tf

address = os.environ["FILES_AT"]
folder = keras.utils.get_file("many.zip", f"{address}/many.zip", extract=True)
say("found", [open(os.path.join(folder, f"{n}.txt")).read() for n in range(3)])
say("again", keras.utils.get_file("many.zip", f"{address}/many.zip", extract=True) == folder)
if tf.distribute.get_strategy().cluster_resolver.task_id == 1:
    say("alone", os.path.getsize(keras.utils.get_file("alone.zip", f"{address}/many.zip")))
"""


class SlowFiles(http.server.BaseHTTPRequestHandler):
    """Gives an archive, half of it late."""

    def do_GET(self):
        self.server.requested.append(self.path)
        body = self.server.body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        time.sleep(1)
        with suppress(ConnectionError):
            self.wfile.write(body[len(body) // 2 :])

    def log_message(self, *_):
        pass


@pytest.fixture
def slow_files():
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as stream:
        for number in range(3):
            stream.writestr(f"{number}.txt", f"text {number}")
        stream.writestr("more/zeros", bytes(100_000))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowFiles) as server:
        server.requested, server.body = [], archive.getvalue()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def downloads(command_in, tmp_path, slow_files):
    """A directory with a cold cache, and a server of files."""
    home = tmp_path / "keras"
    home.mkdir()
    command = command_in(tmp_path)
    address = f"http://127.0.0.1:{slow_files.server_port}"
    command.environment |= {"KERAS_HOME": str(home), "FILES_AT": address}
    return command


def test_one_worker_downloads_and_extracts_for_all(downloads, slow_files):
    finished = downloads.run("--workers", "2", "--tee", "all", downloads.script(DOWNLOADS))
    assert finished.code == 0, finished.err
    for rank in range(2):
        output = finished.output(rank)
        assert output["found"] == ["text 0", "text 1", "text 2"]
        assert output["again"] is True
    assert finished.output(1)["alone"] == len(slow_files.body)
    assert slow_files.requested == ["/many.zip", "/many.zip"]


IS_KILLED = """
import os, signal, keras, urllib.request
def kill():
    with open("killed", "x"):
        os.kill(os.getpid(), signal.SIGKILL)
reads = []
urlopen = urllib.request.urlopen
def breaks_off(*args, **kwargs):
    answer = urlopen(*args, **kwargs)
    read = answer.read
    def read_and_be_killed(size):
        data = read(size)
        if len(reads) == 3 and not os.path.exists("killed"):
            kill()
        reads.append(len(data))
        return data
    answer.read = read_and_be_killed
    return answer
urllib.request.urlopen = breaks_off
path = keras.utils.get_file("many.zip", os.environ["FILES_AT"] + "/many.zip")
say("size", os.path.getsize(path))
"""


@FULL
def test_a_worker_that_is_killed_in_a_download_leaves_no_half_file(downloads, slow_files):
    script = downloads.script(IS_KILLED)
    finished = downloads.run("--workers", "2", "--max-restarts", "1", "--tee", "all", script)
    assert finished.code == 0, finished.err
    assert [finished.output(rank)["size"] for rank in range(2)] == [len(slow_files.body)] * 2
    # The other worker may have started to download before the launcher ended it.
    assert len(slow_files.requested) in (2, 3)


DIRECTORIES = """
import os, pathlib, shutil
import tensorflow as tf
def refused(make, *args, **options):
    try:
        make(*args, **options)
    except FileExistsError:
        return True
for name in ("a", "b/c"):
    os.makedirs(name)
pathlib.Path("b/d").mkdir()
os.mkdir(b"e")
os.makedirs("a/f", exist_ok=True)
say("again", [refused(os.makedirs, name) for name in ("a", "b/c", "b/d")])
say("before", [refused(os.makedirs, "before"), refused(pathlib.Path("before").mkdir)])
say("a-file", refused(os.mkdir, "file"))
say("exist_ok", refused(os.makedirs, "before", exist_ok=True))
"""


@FULL
def test_a_directory_that_a_sibling_made_is_made(command):
    (command.directory / "before").mkdir()
    (command.directory / "file").touch()
    script = command.script(DIRECTORIES)
    finished = command.run("--workers", "3", "--tee", "all", script)
    assert finished.code == 0, finished.err
    for rank in range(3):
        output = finished.output(rank)
        assert output["again"] == [True] * 3
        assert output["before"] == [True] * 2
        assert output["a-file"] is True
        assert output["exist_ok"] is None
    again = command.run("--workers", "2", script)
    assert again.code == 1
    assert "FileExistsError" in again.err
    assert "All 2 workers run line 14 of train.py: os.makedirs(name)\n" in again.err
    assert "with phalanx.local_chief_first():" in again.err


FIRST = """
import os, time
import phalanx
with phalanx.local_chief_first():
    if not os.path.exists("prepared"):
        time.sleep(0.5)
        open("prepared", "x").write("whole")
    say("found", open("prepared").read())
failing = int(os.environ.get("FAILING", -1))
try:
    with phalanx.local_chief_first():
        say("in-block", True)
        assert int(os.environ["PHALANX_RANK"]) != failing, "it has failed"
except phalanx.errors.PhalanxError as error:
    say("raised", f"{type(error).__name__}: {error}")
    raise
"""


def ranks_first(command):
    """The script, which learns its rank from what the launcher hands it."""
    rank = 'str(json.loads(os.environ["PHALANX_WORKER_SPEC"])["rank"])'
    return command.script(FIRST.replace('os.environ["PHALANX_RANK"]', rank))


def test_the_first_worker_of_a_host_goes_first(command):
    finished = command.run("--workers", "3", "--tee", "all", ranks_first(command))
    assert finished.code == 0, finished.err
    for rank in range(3):
        assert finished.output(rank) == {"found": "whole", "in-block": True}


@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=FULL)])
def test_where_it_fails_on_one_worker_it_fails_on_all(command, failing):
    command.environment["FAILING"] = str(failing)
    finished = command.run("--workers", "2", "--tee", "all", ranks_first(command))
    assert finished.code == 1
    assert f"Worker {failing} failed first: AssertionError: it has failed" in finished.err
    raised = finished.output(1 - failing)["raised"]
    assert raised.startswith("WorkerLostError: ")
    assert f"it failed on worker {failing}," in raised
    assert ("in-block" in finished.output(1)) == (failing == 1)


def files_in(directory):
    return sorted(path.name for path in directory.iterdir() if path.is_file())
