"""What `--sync-every` gives on a slow link, and what it costs in quality.

    python benchmarks/local_steps.py            both parts, some 20 minutes; the first needs root
    python benchmarks/local_steps.py --write    the same, and docs/benchmarks.md with it
    python benchmarks/local_steps.py --json     the figures as JSON, in place of tables

*Link*: two workers in two network namespaces, joined by 100 Mbit/s (a token bucket). 40 MB of
weights in 8 like layers; computing is replaced by waiting 0.3 s a step. Samples a second, over
whole epochs with the sync at their end, as a share of computing alone, and the bytes that a worker
sends.

*Quality*: MNIST and a small character language model, trained by two workers with several seeds:
in step, and with local steps. What is shown is the validation loss at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from markers import replace_between
from progress import report
from rich.console import Console
from rich.table import Table
from step_time.environment import ROOT, versions
from step_time.report import processor

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.sync_options import SyncOptions

PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("phalanx", "keras", "tensorflow-cpu")
PREFIX = f"local{os.getpid()}"
NETWORK = "10.79.0"
TIMEOUT = 600.0

OVERLAPPED = SyncOptions(every=50, fragments=4, delay=10)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train.

    Attributes:
        name: what the table calls it.
        sync: how often workers synchronize.
        steps: that are measured on the link.
        workers: how many.
    """

    name: str
    sync: SyncOptions
    steps: int
    workers: int = 2


LINK = (
    Way(name="computing alone", sync=SyncOptions(), steps=20, workers=1),
    Way(name="in step", sync=SyncOptions(), steps=5),
    Way(name="H = 50, float32, all wait", sync=SyncOptions(every=50, dtype="float32"), steps=100),
    Way(name="H = 50, bfloat16, all wait", sync=SyncOptions(every=50), steps=100),
    Way(
        name="H = 50, bfloat16, 4 fragments, 10 steps later",
        sync=OVERLAPPED,
        steps=200,
    ),
)
QUALITY = (
    Way(name="in step", sync=SyncOptions(), steps=0),
    Way(name="DiLoCo, H = 50", sync=SyncOptions(every=50), steps=0),
    Way(
        name="the same, outer momentum 0.5",
        sync=SyncOptions(every=50, outer_momentum=0.5),
        steps=0,
    ),
    Way(name="DiLoCo, 4 fragments, 10 steps later", sync=OVERLAPPED, steps=0),
    Way(
        name="post-local SGD, H = 8 after half of the steps",
        sync=SyncOptions(every=8, warmup=400, outer_optimizer="none"),
        steps=0,
    ),
)

LINK_SCRIPT = """
import json, os, sys, time
import keras, numpy as np, tensorflow as tf
import phalanx

WAIT = [0.0]

def wait():
    time.sleep(WAIT[0])
    return np.float32(0)

class Waiting(keras.Model):
    def build(self, shape):
        self.parts = [self.add_weight(shape=(1_250_000,), name=f"layer_{i}") for i in range(8)]
        self.built = True

    def call(self, x):
        return x

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        waited = tf.ensure_shape(tf.numpy_function(wait, [], tf.float32), [])
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(tf.square(p)) for p in self.parts]) + waited
            loss *= tf.reduce_mean(x)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

def sent():
    lines = open("/proc/net/dev").read().splitlines()
    return sum(int(l.split(":")[1].split()[8]) for l in lines if l.strip().startswith("eth0"))

class Clock(keras.callbacks.Callback):
    needs_every_batch = False
    def on_epoch_begin(self, epoch, logs=None):
        self.begin, self.bytes = time.monotonic(), sent()
    def on_epoch_end(self, epoch, logs=None):
        self.seconds, self.bytes = time.monotonic() - self.begin, sent() - self.bytes

steps, every = int(sys.argv[1]), int(sys.argv[2])
model = Waiting()
model.build((None, 1))
model.compile(keras.optimizers.SGD(0.01))
x = np.ones((2 * 400, 1), "float32")
data = tf.data.Dataset.from_tensor_slices(x).batch(2).repeat()
model.fit(data, steps_per_epoch=every + 15 if every else 2, verbose=0)  # traces everything
WAIT[0], clock = 0.3, Clock()
model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
if phalanx.is_chief():
    found = {"seconds_a_step": clock.seconds / steps, "bytes_a_step": clock.bytes / steps}
    open(sys.argv[3], "w").write(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("link", "quality", "both"), default="both")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"update docs/{PAGE.name}")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    if options.part in ("link", "both"):
        figures["link"] = _link()
    if options.part in ("quality", "both"):
        figures["quality"] = _quality(options.seeds)
    report("")
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    tables = _tables(figures)
    for columns, rows in tables.values():
        table = Table(*columns)
        for row in rows:
            table.add_row(*row)
        Console(width=140).print(table)
    if options.write:
        for part, (columns, rows) in tables.items():
            replace_between(PAGE, f"local-steps-{part}", _markdown(part, columns, rows))


def _link() -> list[dict[str, Any]]:
    found = []
    with _namespaces():
        for way in LINK:
            report(f"link: {way.name}")
            found.append({"name": way.name, **_on_the_link(way)})
    return found


def _on_the_link(way: Way) -> dict[str, float]:
    """Seconds and bytes of a step."""
    with tempfile.TemporaryDirectory(prefix="local-steps-") as place:
        script, result = Path(place, "train.py"), Path(place, "result.json")
        script.write_text(LINK_SCRIPT)
        Path(place, "attempts", "0").mkdir(parents=True)
        addresses = tuple(f"{NETWORK}.{10 + rank}:2{rank}99" for rank in range(way.workers))
        workers = []
        for rank in range(way.workers):
            spec = WorkerSpec(
                rank=rank,
                world_size=way.workers,
                addresses=addresses,
                strategy="multiworker",
                threads=1,
                seed=1,
                run_dir=place,
                sync=way.sync,
            )
            environment = {**os.environ, **spec.to_environment(), "TF_CPP_MIN_LOG_LEVEL": "2"}
            words = (sys.executable, "-P", "-m", "phalanx.worker", "-f", str(script))
            arguments = (str(way.steps), str(way.sync.every or 0), str(result))
            workers.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", f"{PREFIX}-{rank}", *words, *arguments],
                    env=environment,
                    cwd=place,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
        try:
            for worker in workers:
                output, _ = worker.communicate(timeout=TIMEOUT)
                if worker.returncode:
                    sys.exit(
                        f"{way.name}: a worker ended with {worker.returncode}:\n"
                        f"{output.decode()[-3000:]}"
                    )
        finally:
            for worker in workers:
                worker.kill()
        measured: dict[str, float] = json.loads(result.read_text())
        return measured


@contextmanager
def _namespaces() -> Iterator[None]:
    """Two namespaces, joined by a cable of 100 Mbit/s."""
    names = [f"{PREFIX}-{i}" for i in range(2)]
    made = []
    try:
        for name in names:
            _call("ip", "netns", "add", name)
            made.append(name)
            _call("ip", "-n", name, "link", "set", "lo", "up")
        peer = ("type", "veth", "peer", "name", "eth0", "netns", names[1])
        _call("ip", "-n", names[0], "link", "add", "eth0", *peer)
        for i, name in enumerate(names):
            _call("ip", "-n", name, "addr", "add", f"{NETWORK}.{10 + i}/24", "dev", "eth0")
            _call("ip", "-n", name, "link", "set", "eth0", "up")
            limit = ("rate", "100mbit", "burst", "256kb", "latency", "50ms")
            _call("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)
        yield
    finally:
        for name in made:
            _call("ip", "netns", "del", name)


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _quality(seeds: int) -> list[dict[str, Any]]:
    from phalanx.testing import WorkerPool

    found = []
    sys.path.insert(0, str(Path(__file__).parent))
    with WorkerPool(2) as pool:
        for task in ("MNIST", "characters"):
            for way in QUALITY:
                report(f"{task}: {way.name}")
                arguments = [task, asdict(way.sync), list(range(seeds))]
                losses = pool.run(train_with_seeds, args=arguments, deadline=3600)[0]
                report(f"  {', '.join(f'{loss:.4f}' for loss in losses)}")
                found.append({"task": task, "name": way.name, "losses": losses})
    return found


def train_with_seeds(task: str, sync: dict[str, Any], seeds: list[int]) -> list[float]:
    """The validation losses with each seed; runs in a worker."""
    import os
    from dataclasses import replace

    import keras

    import phalanx
    from phalanx.cluster.spec import WorkerSpec
    from phalanx.cluster.sync_options import SyncOptions

    spec = WorkerSpec.from_environment(os.environ)
    assert spec is not None
    os.environ.update(replace(spec, sync=SyncOptions(**sync)).to_environment())
    phalanx.enable()
    losses = []
    for seed in seeds:
        keras.utils.set_random_seed(seed)
        model, train, validate, batch = mnist() if task == "MNIST" else characters()
        model.fit(*train, batch_size=batch, epochs=2, verbose=0)
        losses.append(float(model.evaluate(*validate, batch_size=512, verbose=0)))
    return losses


def mnist() -> tuple[Any, Any, Any, int]:
    """800 steps with batches of 64."""
    import keras
    import numpy as np

    with np.load(ROOT / "examples" / "mnist.npz") as file:
        names = sorted(file.files)
        arrays = {name: file[name] for name in names}
    x, y = arrays["x_train"] / np.float32(255), arrays["y_train"]
    x_test, y_test = arrays["x_test"] / np.float32(255), arrays["y_test"]
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(decayed(1e-3)), loss)
    return model, (x[:25_600], y[:25_600]), (x_test, y_test), 64


def characters() -> tuple[Any, Any, Any, int]:
    """800 steps of a language model over the source of Python's library, 32 characters each."""
    import argparse
    import inspect
    import textwrap
    import typing

    import keras
    import numpy as np

    text = "".join(inspect.getsource(module) for module in (argparse, typing, textwrap))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype("int32") % 128
    starts = np.random.default_rng(1).permutation(len(codes) - 33)[: 25_600 + 2_048]
    rows = codes[starts[:, None] + np.arange(33)]
    x, y = rows[:, :-1], rows[:, 1:]
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32,), dtype="int32"),
            layers.Embedding(128, 32),
            layers.Conv1D(64, 8, padding="causal", activation="relu"),
            layers.Conv1D(64, 8, padding="causal", activation="relu"),
            layers.Dense(128),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(decayed(2e-3)), loss)
    return model, (x[:25_600], y[:25_600]), (x[25_600:], y[25_600:]), 64


def decayed(rate: float) -> Any:
    """A learning rate that falls to 0 at the end of the training, after 800 steps."""
    import keras

    return keras.optimizers.schedules.CosineDecay(rate, 800)


def _tables(figures: dict[str, Any]) -> dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    tables = {}
    if found := figures.get("link"):
        alone, in_step = found[0]["seconds_a_step"], found[1]["bytes_a_step"]
        columns = ("workers", "s a step", "samples/s, computing alone = 100 %", "bytes a sample")
        tables["link"] = (
            columns,
            [
                (
                    one["name"],
                    f"{one['seconds_a_step']:.3f}",
                    f"{alone / one['seconds_a_step']:.1%}",
                    "0" if one is found[0] else f"1/{in_step / one['bytes_a_step']:.0f} of in step",
                )
                for one in found
            ],
        )
    if found := figures.get("quality"):
        columns = ("task", "training", "mean loss", "standard deviation", "least", "largest")
        tables["quality"] = (
            columns,
            [
                (
                    one["task"],
                    one["name"],
                    f"{mean(one['losses']):.4f}",
                    f"{stdev(one['losses']):.4f}" if len(one["losses"]) > 1 else "",
                    f"{min(one['losses']):.4f}",
                    f"{max(one['losses']):.4f}",
                )
                for one in found
            ],
        )
    return tables


def _markdown(part: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    software = versions(Path(sys.executable), PACKAGES)
    named = ", ".join(f"{name} {number}" for name, number in software.items())
    texts = 1 if part == "link" else 2
    lines = [
        f"`python benchmarks/local_steps.py --part {part} --write`, on {processor()}; {named}.",
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * texts + "|---:" * (len(columns) - texts) + "|",
    ]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


if __name__ == "__main__":
    main()
