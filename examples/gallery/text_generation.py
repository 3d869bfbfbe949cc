"""A miniature GPT: causal attention, a loss by token, and a callback that writes text."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LENGTH, WIDTH = 18, 16

keras.utils.set_random_seed(231)

TEXT = "the cat sat on the mat and the dog sat on the log and the owl sat in the old oak tree. " * 6
letters = sorted(set(TEXT))
number_of = {letter: number for number, letter in enumerate(letters)}


class PositionalEncoding(layers.Layer):
    """Sines and cosines, which need no table."""

    def call(self, inputs):
        position = ops.expand_dims(ops.arange(ops.shape(inputs)[1], dtype="float32"), 1)
        rates = 10.0 ** (-ops.arange(WIDTH // 2, dtype="float32") / 3)
        angles = position * rates
        return inputs + ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)


class DecoderBlock(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm1 = layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(2, WIDTH // 2, use_bias=False)
        self.norm2 = layers.LayerNormalization()
        self.up = layers.Dense(2 * WIDTH, activation="gelu")
        self.down = layers.Dense(WIDTH)

    def call(self, inputs):
        normed = self.norm1(inputs)
        x = inputs + self.attention(normed, normed, use_causal_mask=True)
        return x + self.down(self.up(self.norm2(x)))


inputs = keras.Input((None,), dtype="int32")
x = layers.Embedding(len(letters), WIDTH)(inputs)
x = PositionalEncoding()(x)
x = DecoderBlock()(x)
x = DecoderBlock()(x)
outputs = layers.Dense(len(letters))(layers.LayerNormalization()(x))
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.Adam(0.003, beta_2=0.98),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)


class TextGenerator(keras.callbacks.Callback):
    """Continues a text, each time by the likeliest letter."""

    def __init__(self, start, count):
        super().__init__()
        self.start, self.count, self.written = start, count, []

    def on_epoch_end(self, epoch, logs=None):
        text = self.start
        for _ in range(self.count):
            window = np.array([[number_of[letter] for letter in text[-LENGTH:]]])
            logits = self.model(window)[0, -1]
            text += letters[int(ops.argmax(logits))]
        print("generated:", text)
        self.written.append(text)


ids = np.array([number_of[letter] for letter in TEXT])
sequences = np.lib.stride_tricks.sliding_window_view(ids, LENGTH + 1)[::3]
dataset = tf.data.Dataset.from_tensor_slices((sequences[:, :-1], sequences[:, 1:])).batch(41)
generator = TextGenerator("the cat", 12)
history = model.fit(dataset, epochs=3, verbose=2, callbacks=[generator]).history
loss = model.evaluate(dataset, verbose=0)
result = {**history, "written": generator.written, "perplexity": float(np.exp(loss))}
print("RESULT", json.dumps(result))
