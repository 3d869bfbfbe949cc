"""The training that every strategy runs: two epochs on arrays, of which the second counts."""

import json
import sys
import time
from pathlib import Path

import keras

sys.path.insert(0, str(Path(__file__).parents[1]))
from step_time.workload import GLOBAL_BATCH, keras_model, samples

STEPS = int(sys.argv[1])


class Clock(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds = time.perf_counter() - self.started


clock = Clock()
x, y = samples("cnn", STEPS)
keras_model(keras, "cnn").fit(x, y, batch_size=GLOBAL_BATCH, epochs=2, verbose=0, callbacks=[clock])
print("TOOK", json.dumps(clock.seconds / STEPS), flush=True)
