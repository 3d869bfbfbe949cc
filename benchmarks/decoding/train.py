"""A Keras script that waits for its input: JPEG files, decoded in a map.

    phalanx run --workers 2 train.py DIRECTORY RESULTS [--late] [--count]

It knows nothing of workers. Each process writes a file to RESULTS: the samples per second of each
epoch but the first, processor seconds of these epochs, and how many samples it has decoded.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

SIZE = 64
EPOCHS = 3
AUTOTUNE = tf.data.AUTOTUNE


class Counter:
    """Counts what passes through `tf.data`."""

    def __init__(self) -> None:
        self.decoded = 0
        self._lock = threading.Lock()

    def count(self, image: np.ndarray) -> np.ndarray:
        with self._lock:
            self.decoded += 1
        return image


class Clock(keras.callbacks.Callback):
    """Seconds and processor seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.processor: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._begin[0])
        self.processor.append(time.process_time() - self._begin[1])


def main() -> None:
    directory, results, *flags = sys.argv[1:]
    keras.utils.set_random_seed(1)
    counter = Counter()
    paths = sorted(str(path) for path in Path(directory).glob("*.jpg"))
    labels = [number % 10 for number in range(len(paths))]

    def decode(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.resize(image, (SIZE, SIZE)) / 255.0
        if "--count" in flags:
            image = tf.numpy_function(counter.count, [image], tf.float32, stateful=False)
            image = tf.ensure_shape(image, (SIZE, SIZE, 3))
        return image, label

    files = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths), seed=2)
    images = files.map(decode, num_parallel_calls=AUTOTUNE)
    if "--late" in flags:  # a step of which nothing is known: rows are chosen after it
        images = images.concatenate(images.take(0))
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    clock = Clock()
    history = model.fit(
        images.batch(32).prefetch(AUTOTUNE), epochs=EPOCHS, verbose=0, callbacks=[clock]
    )
    found = {
        "samples_per_second": [len(paths) / seconds for seconds in clock.seconds[1:]],
        "processor_seconds": clock.processor[1:],
        "decoded_per_epoch": counter.decoded / EPOCHS,
        "loss": history.history["loss"][-1],
    }
    (Path(results) / f"{os.getpid()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
