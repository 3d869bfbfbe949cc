"""Image classification: a subclassed model whose blocks are built at the first call."""

import json

import keras
import numpy as np
from keras import layers

SIZE, CLASSES = 12, 4

keras.utils.set_random_seed(51)


class ConvBlock(layers.Layer):
    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.conv = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        self.norm = layers.GroupNormalization(groups=2)
        self.pool = layers.MaxPooling2D()

    def call(self, inputs):
        return self.pool(keras.activations.relu(self.norm(self.conv(inputs))))


class Classifier(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.blocks = [ConvBlock(filters) for filters in (6, 12)]
        self.flatten = layers.Flatten()
        self.logits = layers.Dense(classes, kernel_regularizer=keras.regularizers.L2(1e-3))

    def call(self, inputs, training=False):
        x = inputs
        for block in self.blocks:
            x = block(x)
        return self.logits(self.flatten(x))


rng = np.random.default_rng(52)
count = 187
y = rng.integers(0, CLASSES, count)
x = rng.normal(0, 0.3, (count, SIZE, SIZE, 1))
for image, label in zip(x, y, strict=True):
    down, right = divmod(int(label), 2)
    image[down * 6 : down * 6 + 6, right * 6 : right * 6 + 6] += rng.uniform(0.3, 1)
x = x.astype("float32")

model = Classifier(CLASSES)
model.compile(
    optimizer=keras.optimizers.Adam(0.005),
    loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(k=2, name="top_2")],
)
labels = keras.utils.to_categorical(y, CLASSES)
history = model.fit(x, labels, batch_size=32, epochs=4, validation_split=0.2, verbose=2).history
result = {
    **history,
    "weights": float(np.sqrt(sum(np.sum(np.square(w)) for w in model.get_weights()))),
    "probabilities": float(np.sum(np.square(keras.ops.softmax(model.predict(x, verbose=0))))),
}
print("RESULT", json.dumps(result))
