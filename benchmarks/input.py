"""Is `phalanx.data.pipeline` as fast as the `tf.data` that the guides teach to write by hand?

    python benchmarks/input.py           the whole comparison, some minutes
    python benchmarks/input.py --write   the same, and docs/benchmarks.md with it

MNIST in batches of 64, read and nothing else, on one process: from arrays, from TFRecord files, and
from a directory of PNG files by class. By hand: as tensorflow.org/guide/data and the tutorials on
images and TFRecords have it (shuffle with a buffer, parallel map, batch, prefetch). In each round
all contenders of a kind take turns, each for one pass; the first pass of each is not counted.
Processor time is that of all threads; on a busy machine it says more than the time on the clock.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from markers import replace_between
from progress import report
from rounds import round_options
from step_time.environment import ROOT, versions
from step_time.report import processor
from tables import Results, show

import phalanx

PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("phalanx", "tensorflow-cpu")
BATCH = 64
IMAGES = 6000  # of the PNG files
BUFFER = 10_000
COLUMNS = ("input", "samples/s", "vs. by hand", "spread", "CPU vs. by hand")
AUTOTUNE = tf.data.AUTOTUNE


class Pass(NamedTuple):
    """One pass: samples a second, and processor seconds a sample."""

    rate: float
    cost: float


def main() -> None:
    options = round_options(__doc__, PAGE)
    with np.load(ROOT / "examples" / "mnist.npz") as file:
        x, y = file["x_train"], file["y_train"].astype("int64")
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(prefix="input-") as place:
        for kind, contenders in _kinds(x, y, place).items():
            rows += _rows(kind, _measured(kind, contenders, options.rounds))
    report("")
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)
    if options.write:
        replace_between(PAGE, "input", _markdown(rows, options.rounds))


def _kinds(x: np.ndarray, y: np.ndarray, place: str) -> dict[str, dict[str, tf.data.Dataset]]:
    """By kind of input the contenders, the one written by hand first."""
    report("writing files")
    files = phalanx.data.write_tfrecords((x, y), f"{place}/records/train", shards=8)
    directory = Path(place) / "images"
    _write_images(directory, x[:IMAGES], y[:IMAGES])
    return {
        "arrays": {
            "by hand": _arrays_by_hand(x, y),
            "`pipeline((x, y))`": phalanx.data.pipeline((x, y), BATCH),
        },
        "TFRecords": {
            "by hand": _records_by_hand(list(files)),
            "`tfrecords(..., index=True)`": phalanx.data.pipeline(
                phalanx.data.tfrecords(files, index=True), BATCH
            ),
            "`tfrecords(...)`, a stream": phalanx.data.pipeline(
                phalanx.data.tfrecords(files), BATCH, shuffle_buffer=BUFFER
            ),
        },
        "PNG files": {
            "by hand": _images_by_hand(directory),
            "`pipeline(directory)`": phalanx.data.pipeline(str(directory), BATCH),
        },
    }


def _write_images(directory: Path, x: np.ndarray, y: np.ndarray) -> None:
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        path = directory / str(label)
        path.mkdir(parents=True, exist_ok=True)
        png = tf.io.encode_png(image[..., np.newaxis])
        (path / f"{number}.png").write_bytes(png.numpy())


def _arrays_by_hand(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    samples = tf.data.Dataset.from_tensor_slices((x, y))
    return samples.shuffle(len(x)).batch(BATCH).prefetch(AUTOTUNE)


def _records_by_hand(files: list[str]) -> tf.data.Dataset:
    features = {
        "x": tf.io.FixedLenFeature([], tf.string),
        "y": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record: tf.Tensor) -> Any:
        parsed = tf.io.parse_single_example(record, features)
        return tf.reshape(tf.io.decode_raw(parsed["x"], tf.uint8), [28, 28]), parsed["y"]

    names = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    records = names.interleave(tf.data.TFRecordDataset, num_parallel_calls=AUTOTUNE)
    mapped = records.shuffle(BUFFER).map(parse, num_parallel_calls=AUTOTUNE)
    return mapped.batch(BATCH).prefetch(AUTOTUNE)


def _images_by_hand(directory: Path) -> tf.data.Dataset:
    classes = sorted(path.name for path in directory.iterdir())

    def read(path: tf.Tensor) -> Any:
        label = tf.argmax(tf.strings.split(path, os.sep)[-2] == tf.constant(classes))
        return tf.io.decode_png(tf.io.read_file(path), channels=1), label

    paths = [str(path) for path in sorted(directory.glob("*/*.png"))]
    names = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    return names.map(read, num_parallel_calls=AUTOTUNE).batch(BATCH).prefetch(AUTOTUNE)


def _measured(
    kind: str, contenders: dict[str, tf.data.Dataset], rounds: int
) -> dict[str, list[Pass]]:
    """The passes of each contender, round by round."""
    for dataset in contenders.values():
        _pass(dataset)
    found: dict[str, list[Pass]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, dataset in contenders.items():
            report(f"{kind}, round {number + 1} of {rounds}: {name}")
            found[name].append(_pass(dataset))
    return found


def _pass(
    dataset: tf.data.Dataset,
    clock: Callable[[], float] = time.perf_counter,
    processor_clock: Callable[[], float] = time.process_time,
) -> Pass:
    begin, processor_begin, samples = clock(), processor_clock(), 0
    for x, _ in dataset:
        samples += int(x.shape[0])
    processor_seconds = processor_clock() - processor_begin
    return Pass(rate=samples / (clock() - begin), cost=processor_seconds / samples)


def _rows(kind: str, found: dict[str, list[Pass]]) -> list[tuple[str, ...]]:
    by_hand = found["by hand"]
    rows = []
    for name, passes in found.items():
        rounds = list(zip(passes, by_hand, strict=True))
        ratios = [own.rate / other.rate for own, other in rounds]
        quartiles = np.percentile(ratios, [25, 75])
        rows.append(
            (
                f"{kind}, {name}",
                f"{median(one.rate for one in passes):,.0f}",
                f"{median(ratios):.2f}",
                f"± {(quartiles[1] - quartiles[0]) / 2:.0%}",
                f"{median(own.cost / other.cost for own, other in rounds):.2f}",
            )
        )
    return rows


def _markdown(rows: list[tuple[str, ...]], rounds: int) -> str:
    named = ", ".join(f"{n} {v}" for n, v in versions(Path(sys.executable), PACKAGES).items())
    lines = [
        f"Medians of {rounds} rounds on {processor()}; {named}. Ratios are medians of the ratios "
        "of each round; the spread is half the interquartile range. CPU is processor time per "
        "sample, over all threads.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---:|---:|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
