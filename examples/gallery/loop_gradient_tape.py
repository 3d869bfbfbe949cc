"""A training loop from scratch, step by step and eager, with metrics and validation."""

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(61)

rng = np.random.default_rng(62)
x = rng.normal(size=(150, 10)).astype("float32")
y = np.argmax(x @ rng.normal(size=(10, 4)), axis=1)
x_val, y_val, x, y = x[-40:], y[-40:], x[:-40], y[:-40]

train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(128, seed=5).batch(23)
val_dataset = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(23)

inputs = keras.Input((10,))
hidden = keras.layers.Dense(16, activation="relu")(inputs)
hidden = keras.layers.Dense(16, activation="relu")(hidden)
model = keras.Model(inputs, keras.layers.Dense(4)(hidden))

optimizer = keras.optimizers.Adam(learning_rate=5e-3)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_acc_metric = keras.metrics.SparseCategoricalAccuracy()
val_acc_metric = keras.metrics.SparseCategoricalAccuracy()

losses, train_accuracies, val_accuracies = [], [], []
for epoch in range(3):
    print(f"Start of epoch {epoch}")
    for step, (x_batch, y_batch) in enumerate(train_dataset):
        with tf.GradientTape() as tape:
            logits = model(x_batch, training=True)
            loss_value = loss_fn(y_batch, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply(grads, model.trainable_weights)
        train_acc_metric.update_state(y_batch, logits)
        losses.append(float(loss_value))
        if step % 2 == 0:
            print(f"Training loss (for 1 batch) at step {step}: {float(loss_value):.4f}")
    train_accuracies.append(float(train_acc_metric.result()))
    train_acc_metric.reset_state()
    for x_batch, y_batch in val_dataset:
        val_acc_metric.update_state(y_batch, model(x_batch, training=False))
    val_accuracies.append(float(val_acc_metric.result()))
    val_acc_metric.reset_state()

result = {
    "losses": losses,
    "train_accuracies": train_accuracies,
    "val_accuracies": val_accuracies,
    "weights": float(np.sqrt(sum(np.sum(np.square(w)) for w in model.get_weights()))),
}
print("RESULT", json.dumps(result))
