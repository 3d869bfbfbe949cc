"""Custom callbacks: what they read of batches and epochs, and what they change."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(161)


class LossHistory(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses, self.sizes = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


class EarlyStoppingAtMinLoss(keras.callbacks.Callback):
    """Stops when the loss stops falling, and brings the best weights back."""

    def __init__(self, patience=0):
        super().__init__()
        self.patience = patience
        self.best_weights = None

    def on_train_begin(self, logs=None):
        self.wait, self.stopped_epoch, self.best = 0, 0, np.inf

    def on_epoch_end(self, epoch, logs=None):
        current = logs.get("val_loss")
        if current < self.best:
            self.best = current
            self.wait = 0
            self.best_weights = self.model.get_weights()
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.stopped_epoch = epoch
            self.model.stop_training = True
            self.model.set_weights(self.best_weights)


class CustomLearningRateScheduler(keras.callbacks.Callback):
    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def on_epoch_begin(self, epoch, logs=None):
        lr = float(self.model.optimizer.learning_rate)
        self.model.optimizer.learning_rate = self.schedule(epoch, lr)


class Confusion(keras.callbacks.Callback):
    """Predicts, evaluates and writes a line after each epoch."""

    def __init__(self, x, y, path):
        super().__init__()
        self.x, self.y, self.path = x, y, path
        self.right = []

    def on_epoch_end(self, epoch, logs=None):
        guess = self.model.predict(self.x, verbose=0) > 0
        self.right.append(int(np.sum(guess[:, 0] == self.y)))
        logs["right"] = self.right[-1]
        with open(self.path, "a") as file:
            file.write(f"{epoch} {self.right[-1]}\n")


rng = np.random.default_rng(162)
x = rng.normal(size=(131, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype("float32")
x_val, y_val = x[100:], y[100:]

model = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(12, activation="relu"), keras.layers.Dense(1)]
)
model.compile(
    keras.optimizers.SGD(0.2, momentum=0.8),
    keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
)
losses = LossHistory()
stopping = EarlyStoppingAtMinLoss(patience=1)
confusion = Confusion(x_val, y_val, "confusion.txt")
history = model.fit(
    x[:100],
    y[:100],
    batch_size=27,
    epochs=12,
    validation_data=(x_val, y_val),
    verbose=2,
    callbacks=[
        losses,
        confusion,
        stopping,
        CustomLearningRateScheduler(lambda epoch, lr: lr if epoch < 2 else lr * 1.5),
        keras.callbacks.LambdaCallback(on_train_end=lambda logs: print("the end")),
    ],
).history
result = {
    "batches": losses.losses,
    "history": history,
    "stopped": stopping.stopped_epoch,
    "best": stopping.best,
    "right": confusion.right,
    "rate": float(model.optimizer.learning_rate),
    "evaluated": model.evaluate(x_val, y_val, verbose=0),
}
print("RESULT", json.dumps(result))
