"""Scripts made for Horovod, under `phalanx run`: they train right, or are refused."""

import pytest

pytest.importorskip("horovod")
pytestmark = pytest.mark.horovod

MODEL = """
import keras, numpy as np, tensorflow as tf

def data():
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")

def build(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,)), *layers])

def report(model, history):
    say("weights", np.concatenate([w.ravel() for w in model.get_weights()]).tolist())
    say("loss", [float(v) for v in history["loss"]])
    say("val_loss", [float(v) for v in history.get("val_loss", [])])
"""

FOR_HOROVOD = """
import horovod.tensorflow.keras as hvd

hvd.init()
x, y = data()
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank()).batch(4)
model = build(7 if hvd.rank() == 0 else 99)  # the callback is to make them equal
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * hvd.size(), global_clipnorm=0.05))
model.compile(optimizer, "mse", metrics=["mae"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.02, warmup_epochs=2, steps_per_epoch=6),
]
held_out = tf.data.Dataset.from_tensor_slices((x, y)).batch(16).shard(hvd.size(), hvd.rank())
history = model.fit(dataset, epochs=3, validation_data=held_out, callbacks=callbacks,
                    verbose=1 if hvd.rank() == 0 else 0).history
report(model, history)
if hvd.rank() == 0:  # alone, as such scripts do
    say("score", model.evaluate(x, y, verbose=0))
    say("predicted", model.predict(x, verbose=0).ravel().tolist())
    model.save("model.keras")
"""

ON_ONE_DEVICE = """
x, y = data()
order = np.arange(48).reshape(-1, 2).T.reshape(2, 6, 4).transpose(1, 0, 2).ravel()
model = build(7)
model.compile(keras.optimizers.Adam(0.02, global_clipnorm=0.05), "mse", metrics=["mae"])

class WarmUp(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch < 2:
            at = self.epoch + batch / 6 + 1 / 6
            self.model.optimizer.learning_rate = 0.02 * (1 / 2 * (at * (2 - 1) / 2 + 1))

history = model.fit(x[order], y[order], batch_size=8, shuffle=False, epochs=3, verbose=0,
                    validation_data=(x, y), callbacks=[WarmUp()]).history
report(model, history)
say("score", model.evaluate(x, y, verbose=0))
say("predicted", model.predict(x, verbose=0).ravel().tolist())
"""

HOROVOD_2 = ("--workers", "2", "--strategy", "horovod", "--tee", "all")


@pytest.mark.full
def test_a_script_made_for_horovod(command):
    alone = command.run(
        "--strategy", "single", "--tee", "all", command.script(MODEL + ON_ONE_DEVICE)
    )
    two = command.run(*HOROVOD_2, command.script(MODEL + FOR_HOROVOD))
    assert (alone.code, two.code) == (0, 0), two.err
    expected = alone.output(0)
    for rank in (0, 1):
        for name in ("weights", "loss", "val_loss"):
            assert two.output(rank)[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    for name in ("score", "predicted"):
        assert two.output(0)[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert "epoch" not in two.output(1)
    assert (command.directory / "model.keras").exists()


BY_HAND = """
import horovod.tensorflow as hvd

hvd.init()
x, y = data()
mine = slice(hvd.rank(), None, hvd.size())
model = build(7 + hvd.rank())
optimizer = keras.optimizers.SGD(0.1)
hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = keras.ops.mean((model(x) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

wrapped = build(7)
average = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))

@tf.function
def step_of_wrapped(x, y):
    with tf.GradientTape() as tape:
        loss = keras.ops.mean((wrapped(x) - y) ** 2)
    average.apply_gradients(zip(tape.gradient(loss, wrapped.trainable_variables),
                                wrapped.trainable_variables))

alone = build(7)
plain = keras.optimizers.SGD(0.1)
for _ in range(3):
    step(x[mine], y[mine])
    step_of_wrapped(x[mine], y[mine])
    with tf.GradientTape() as tape:
        loss = keras.ops.mean((alone(x) - y) ** 2)
    gradients = tape.gradient(loss, alone.trainable_variables)
    for gradient, variable in zip(gradients, alone.trainable_variables):
        variable.assign_sub(0.1 * gradient)
for one in (model, wrapped):
    report(one, {"loss": []})
    np.testing.assert_allclose(one.get_weights()[0], alone.get_weights()[0], rtol=1e-4, atol=1e-6)
say("is", "right")
"""


@pytest.mark.full
def test_loops_made_for_horovod(command):
    two = command.run(*HOROVOD_2, command.script(MODEL + BY_HAND))
    assert two.code == 0, two.err
    assert two.output(0)["is"] == two.output(1)["is"] == "right"
    assert two.output(0)["weights"] == two.output(1)["weights"]


REFUSED = """
import sys
import horovod.tensorflow.keras as hvd
import horovod.tensorflow as htf

hvd.init()
sgd = keras.optimizers.SGD(0.1, momentum=0.9)
model = build(1)
x, y = data()

def tried(name, action):
    try:
        action()
    except Exception as error:
        say(name, f"{type(error).__name__}: {error}")

tried("sum", lambda: hvd.DistributedOptimizer(sgd, op=htf.Sum))
tried("passes", lambda: hvd.DistributedOptimizer(sgd, backward_passes_per_step=2))
tried("elastic", lambda: hvd.elastic.run(lambda state: None))
model.compile(hvd.DistributedOptimizer(sgd), "mse")
for name, callback in {
    "root": hvd.callbacks.BroadcastGlobalVariablesCallback(1),
    "momentum": hvd.callbacks.LearningRateWarmupCallback(0.1, steps_per_epoch=2),
}.items():
    tried(name, lambda: model.fit(x, y, verbose=0, callbacks=[callback]))
tried("positions", lambda: model.fit(x, y, 8, 1))
"""


@pytest.mark.full
def test_what_phalanx_cannot_follow_is_refused(command):
    output = command.run(*HOROVOD_2, command.script(MODEL + REFUSED)).output(0)
    assert "op=Sum" in output["sum"]
    assert "backward_passes_per_step=2" in output["passes"]
    assert "--max-restarts" in output["elastic"]
    assert "variables of process 1" in output["root"]
    assert "momentum 0.9" in output["momentum"]
    assert "by position" in output["positions"]


@pytest.mark.full
def test_under_another_strategy_it_is_refused(command):
    ended = command.run("--workers", "2", command.script(MODEL + FOR_HOROVOD))
    assert ended.code == 1
    assert "this script trains under" in ended.err
    assert "--strategy horovod" in ended.err
