"""Text classification with a transformer block."""

import json

import keras
import numpy as np
from keras import layers, ops

VOCABULARY, LENGTH, WIDTH = 40, 16, 16

keras.utils.set_random_seed(31)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.att = layers.MultiHeadAttention(
            num_heads=num_heads, key_dim=embed_dim // num_heads, use_bias=False
        )
        self.ffn = keras.Sequential(
            [layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        out1 = self.layernorm1(inputs + self.dropout1(self.att(inputs, inputs)))
        return self.layernorm2(out1 + self.dropout2(self.ffn(out1)))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.token_emb = layers.Embedding(vocab_size, embed_dim)
        self.pos_emb = layers.Embedding(maxlen, embed_dim)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], step=1)
        return self.token_emb(x) + self.pos_emb(positions)


rng = np.random.default_rng(32)
words = [f"w{number}" for number in range(VOCABULARY)]
texts, labels = [], []
for _ in range(157):
    chosen = rng.integers(0, VOCABULARY, rng.integers(5, LENGTH + 1))
    texts.append(" ".join(words[word] for word in chosen))
    labels.append(int(np.mean(chosen) > VOCABULARY / 2))
labels = np.array(labels)

vectorize = layers.TextVectorization(output_mode="int", output_sequence_length=LENGTH)
vectorize.adapt(texts)
x = np.array(vectorize(texts))

inputs = layers.Input(shape=(LENGTH,))
embedded = TokenAndPositionEmbedding(LENGTH, vectorize.vocabulary_size(), WIDTH)(inputs)
hidden = TransformerBlock(WIDTH, 2, 32)(embedded)
hidden = layers.GlobalAveragePooling1D()(hidden)
hidden = layers.Dropout(0.1)(hidden)
hidden = layers.Dense(16, activation="relu")(hidden)
outputs = layers.Dense(2, activation="softmax")(hidden)
model = keras.Model(inputs, outputs)

model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    x[:119],
    labels[:119],
    batch_size=25,
    epochs=4,
    validation_data=(x[119:], labels[119:]),
    verbose=2,
).history
result = {
    **history,
    "predicted": float(np.mean(np.square(model.predict(x, verbose=0)))),
}
print("RESULT", json.dumps(result))
