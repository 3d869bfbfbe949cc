"""Clip exploding gradients before or after the replicas are added up, and see what it changes.

    python examples/exploding_gradients.py --plot exploding.png

A small recurrent network, whose gradients explode, learns the adding problem by plain SGD
with `global_clipnorm`. Four contenders see the same batches from the same initial weights:
no clipping; plain Keras under a strategy of four replicas, which clips each replica's
gradient and then adds them up; phalanx.fit on the same replicas, which adds up and then
clips; and plain Keras on one device. Each runs in a process of its own.

What makes gradients explode makes rounding explode too: in float64, the default here, the last
two stay together to the end; with `--precision float32` they part within fifty steps, and end
about equally well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

REPLICAS = 4
HELD_OUT = 256
MEASURE_EVERY = 10
UNITS = 32
MEAN_ANSWER = 1 / 6
"""The loss of always answering 1, the mean: the variance of a sum of two uniform numbers."""
NAMES = {
    "unclipped": "no clipping",
    "keras": f"Keras, {REPLICAS} replicas (clips, then sums)",
    "phalanx": f"phalanx.fit, {REPLICAS} replicas (sums, then clips)",
    "one": "Keras, one device",
}


def adding_problem(generator, count, length, dtype):
    """Sequences of (number, mark) with two marks each; the target is the marked numbers' sum."""
    numbers = generator.random((count, length)).astype(dtype)
    marks = np.zeros((count, length), dtype)
    rows = np.arange(count)
    marks[rows, generator.integers(0, length // 2, count)] = 1
    marks[rows, generator.integers(length // 2, length, count)] = 1
    return np.stack([numbers, marks], axis=-1), (numbers * marks).sum(axis=1, keepdims=True)


def make_model(seed, options, clip):
    import keras

    keras.config.set_floatx(options.precision)
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((options.length, 2)),
            # The state grows by this factor at every position, and so does its gradient.
            keras.layers.SimpleRNN(
                UNITS,
                activation="relu",
                recurrent_initializer=keras.initializers.Identity(gain=options.growth),
                unroll=True,
            ),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.SGD(options.learning_rate, global_clipnorm=clip)
    model.compile(optimizer=optimizer, loss="mse")
    return model


def make_watch(held_out, steps):
    """A callback that notes the norm of every applied update, and the held-out loss."""
    import keras
    import tensorflow as tf

    class Watch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.losses = []
            self.updates = [float("nan")] * steps

        def on_train_begin(self, logs=None):
            x, y = map(tf.constant, held_out)
            model = self.model
            self._loss = tf.function(lambda: tf.reduce_mean(tf.square(model(x) - y)))
            self._before = self._weights()
            self.losses.append(float(self._loss()))

        def on_train_batch_end(self, batch, logs=None):
            after = self._weights()
            self.updates[batch] = float(np.linalg.norm(after - self._before))
            self._before = after
            if not np.isfinite(after).all():
                self.model.stop_training = True
            elif (batch + 1) % MEASURE_EVERY == 0:
                self.losses.append(float(self._loss()))

        def on_train_end(self, logs=None):
            missing = steps // MEASURE_EVERY + 1 - len(self.losses)
            self.losses += [float("nan")] * missing

        def _weights(self):
            weights = self.model.get_weights()
            return np.concatenate([weight.ravel() for weight in weights]).astype("float64")

    return Watch()


def train(contender, seed, options):
    """The held-out losses and the norms of the updates of one training."""
    import tensorflow as tf

    import phalanx

    generator = np.random.default_rng(seed)
    held_out = adding_problem(generator, HELD_OUT, options.length, options.precision)
    count = options.steps * options.batch_size
    x, y = adding_problem(generator, count, options.length, options.precision)
    scope = contextlib.nullcontext()
    if contender in ("keras", "phalanx"):
        devices = [f"CPU:{index}" for index in range(REPLICAS)]
        scope = tf.distribute.MirroredStrategy(devices).scope()
    with scope:
        model = make_model(seed, options, None if contender == "unclipped" else options.clip)
    watch = make_watch(held_out, options.steps)
    arguments = {"batch_size": options.batch_size, "shuffle": False, "verbose": 0}
    if contender == "phalanx":
        phalanx.fit(model, x, y, callbacks=[watch], **arguments)
    else:
        model.fit(x, y, callbacks=[watch], **arguments)
    return {"losses": watch.losses, "updates": watch.updates}


def run_contender(options):
    """What the child process does: every seed, written as JSON."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(REPLICAS)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)]
    tf.config.set_logical_device_configuration(cpu, parts)
    runs = [train(options.contender, seed, options) for seed in range(options.seeds)]
    Path(options.result).write_text(json.dumps(runs))


def measure(contender, arguments):
    """Run a contender in a process of its own: arrays of (seed, measurement)."""
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, __file__, *arguments]
        command += ["--contender", contender, "--result", str(result)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{NAMES[contender]} failed:\n{done.stderr[-3000:]}")
        runs = json.loads(result.read_text())
    return {key: np.array([run[key] for run in runs]) for key in ("losses", "updates")}


def judge(measured, options):
    """What the table shows of one contender."""
    # The median of the last five measurements, since single ones jump.
    last = measured["losses"][:, -5:]
    finite = np.isfinite(last).all(axis=1)
    final = np.where(finite, np.median(last, axis=1), np.inf)
    # An overflow ends a training; the update that caused it has no norm to show.
    updates = np.where(np.isfinite(measured["updates"]), measured["updates"], 0)
    return {
        "final": float(np.median(final)),
        "best": float(final.min()),
        "worst": float(final.max()),
        "diverged": float((final > measured["losses"][:, 0]).mean()),
        "learned": float((final < options.learned * MEAN_ANSWER).mean()),
        "largest_update": float(updates.max() / (options.clip * options.learning_rate)),
    }


def distance(one, other):
    """The largest relative distance of two sets of loss curves, up to each measurement."""
    apart = np.abs(one["losses"] - other["losses"]) / np.abs(other["losses"])
    return np.maximum.accumulate(apart.max(axis=0))


def show(verdicts, apart, options):
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"The adding problem over {options.length} positions after {options.steps} steps, "
        f"{options.seeds} seed{'s' * (options.seeds > 1)}"
    )
    for heading in (
        "",
        "final loss (best to worst)",
        "diverged",
        "learned",
        "largest update",
    ):
        table.add_column(heading, justify="left" if not heading else "right")
    for contender, verdict in verdicts.items():
        spread = f"{verdict['final']:.3g} ({verdict['best']:.3g} to {verdict['worst']:.3g})"
        table.add_row(
            NAMES[contender],
            spread,
            f"{verdict['diverged']:.0%}",
            f"{verdict['learned']:.0%}",
            f"{verdict['largest_update']:.4g}",
        )
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table)
    console.print(
        "diverged: the final held-out loss is infinite or above the one before training. "
        f"learned: it is below {options.learned:g} times that of always answering the mean "
        f"({MEAN_ANSWER:.3f}). largest update: the norm by which one step moved the weights, in "
        "units of global_clipnorm x learning rate, which is what was asked for."
    )
    for at in sorted({min(50, options.steps), min(100, options.steps), options.steps}):
        largest = apart[min(at // MEASURE_EVERY, len(apart) - 1)]
        console.print(
            f"phalanx.fit beside one device, losses up to step {at}: "
            f"at most {largest:.1e} apart (relative, all seeds)."
        )


def plot(measured, options):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    styles = {
        "unclipped": {"color": "#8a8a8a", "marker": "x"},
        "keras": {"color": "#d1495b"},
        "phalanx": {"color": "#1b6ca8", "linewidth": 2.2},
        "one": {"color": "#f2b134", "linestyle": (0, (2, 2))},
    }
    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(8, 7.2), sharex=True, constrained_layout=True
    )
    at = np.arange(0, options.steps + 1, MEASURE_EVERY)
    unit = options.clip * options.learning_rate
    for contender, style in styles.items():
        losses = measured[contender]["losses"]
        # A median over the seeds that still train would hide those that do not.
        middle = np.median(losses, axis=0)
        line = {"linewidth": 1.6, "label": NAMES[contender], **style}
        top.plot(at, middle, markersize=9, markeredgewidth=2, **line)
        if contender in ("keras", "phalanx"):
            low, high = losses.min(axis=0), losses.max(axis=0)
            top.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
        updates = measured[contender]["updates"] / unit
        first = updates[0]
        line = {**line, "linewidth": line["linewidth"] / 2}
        bottom.plot(np.arange(1, len(first) + 1), first, markersize=9, markeredgewidth=2, **line)
    top.axhline(MEAN_ANSWER, color="black", linewidth=0.8, linestyle=":")
    top.annotate(
        "always answering the mean",
        (options.steps, MEAN_ANSWER),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )
    # What leaves this range has diverged.
    top.set(yscale="log", ylabel="held-out loss", ylim=(0.03, 100))
    top.set_title(f"Median of {options.seeds} seeds; shaded: from the best seed to the worst")
    top.legend(frameon=False, fontsize=9)
    bottom.axhline(1, color="black", linewidth=0.8, linestyle=":")
    bottom.set(ylim=(0, REPLICAS + 1), xlabel="step", ylabel="norm of the update / (c x lr)")
    bottom.annotate(
        f"no clipping: {measured['unclipped']['updates'][0, 0] / unit:.3g} at the first step",
        (1, REPLICAS + 1),
        xytext=(6, -12),
        textcoords="offset points",
        fontsize=8,
        color="#5a5a5a",
    )
    bottom.set_title("Seed 0: how far each step moved the weights; 1 is what was asked for")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.plot, dpi=100)


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", help="write the curves to this file (PNG, SVG, PDF)")
    parser.add_argument("--json", help="write what the table says to this file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a global batch")
    parser.add_argument("--length", type=int, default=10, help="positions of a sequence")
    parser.add_argument("--growth", type=float, default=1.2, help="initial recurrent factor")
    parser.add_argument("--clip", type=float, default=0.1, help="global_clipnorm, c")
    parser.add_argument("--learning-rate", type=float, default=1.0, help="lr")
    parser.add_argument("--precision", choices=["float64", "float32"], default="float64")
    parser.add_argument("--learned", type=float, default=0.6, help=argparse.SUPPRESS)
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.batch_size % REPLICAS:
        parser.error(f"--batch-size must be a multiple of {REPLICAS}")
    if options.steps < 5 * MEASURE_EVERY or options.steps % MEASURE_EVERY:
        parser.error(f"--steps must be a multiple of {MEASURE_EVERY}, from {5 * MEASURE_EVERY}")
    return options


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    if options.contender:
        run_contender(options)
        return
    # Two at a time; the ones on several replicas take longest.
    with ThreadPoolExecutor(2) as pool:
        order = ["keras", "phalanx", "one", "unclipped"]
        done = dict(zip(order, pool.map(lambda one: measure(one, arguments), order), strict=True))
    measured = {contender: done[contender] for contender in NAMES}
    verdicts = {contender: judge(one, options) for contender, one in measured.items()}
    apart = distance(measured["phalanx"], measured["one"])
    show(verdicts, apart, options)
    if options.json:
        verdicts["apart"] = apart.tolist()
        Path(options.json).write_text(json.dumps(verdicts))
    if options.plot:
        plot(measured, options)


if __name__ == "__main__":
    main()
