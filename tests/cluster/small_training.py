"""A training on a part of MNIST: it says how far it is, can continue, and is slow beside a file.

Beside `hold` after every epoch, beside `hold-3` after epoch 3.
"""

from pathlib import Path

import numpy as np

MNIST = Path(__file__).parents[2] / "examples" / "mnist.npz"
EPOCHS = 60

SCRIPT = """
import sys, time
from pathlib import Path
import keras
import numpy as np
import phalanx
from phalanx.callbacks import Checkpoint, every_n_steps

place = Path(sys.argv[1])

class Report(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        (place / f"epoch-{{epoch}}").touch()
        time.sleep(0.2)
        end = time.monotonic() + 8  # Slow and not still: what was saved is noted at the next step.
        held = place / "hold", place / f"hold-{{epoch}}"
        while any(hold.exists() for hold in held) and time.monotonic() < end:
            time.sleep(0.1)

with np.load("{mnist}") as file:
    x = file["x_train"][:240].reshape(240, -1).astype("float32") / 255
    y = file["y_train"][:240]
layers = [keras.Input((784,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(10)]
model = keras.Sequential(layers)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
callbacks = [Checkpoint(place / "checkpoints", every=every_n_steps({every})), Report()]
model.fit({data}, epochs={epochs}, callbacks=callbacks, verbose=0)
_, accuracy = model.evaluate(x, y, batch_size=48, verbose=0)
np.savez(place / "weights.npz", accuracy, *model.get_weights())
"""


IN_MEMORY = "x, y, batch_size=48"
SERVED = "phalanx.data.pipeline((x, y), 48, seed=1, service=True)"


def put_into(directory, *, epochs=EPOCHS, every=5, data=IN_MEMORY):
    """The script in a directory; its argument is where it writes. It saves so often, in steps."""
    directory.mkdir()
    (directory / "train.py").write_text(
        SCRIPT.format(mnist=MNIST, epochs=epochs, every=every, data=data)
    )
    return directory


def weights(directory):
    """What was trained, once it is plain that something was learnt."""
    with np.load(directory / "weights.npz") as saved:
        accuracy, *trained = [saved[name] for name in saved]
    assert accuracy > 0.9, accuracy
    return trained
