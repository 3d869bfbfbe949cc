"""A masked language model of KerasHub's: a small BERT backbone, made at random."""

import json

import keras
import keras_hub
import numpy as np

VOCABULARY, LENGTH, MASKS = 40, 12, 3

keras.utils.set_random_seed(61)
rng = np.random.default_rng(61)
tokens = rng.integers(5, VOCABULARY, (70, LENGTH))
tokens[:, 1::2] = (tokens[:, ::2] + 1) % VOCABULARY
positions = np.sort(rng.permuted(np.tile(np.arange(LENGTH), (70, 1)), axis=1)[:, :MASKS], axis=1)
masked = tokens.copy()
np.put_along_axis(masked, positions, 4, axis=1)
x = {
    "token_ids": masked,
    "segment_ids": np.zeros_like(tokens),
    "padding_mask": np.ones_like(tokens),
    "mask_positions": positions,
}
y = np.take_along_axis(tokens, positions, axis=1)
weight = rng.uniform(0.5, 1.0, y.shape)

backbone = keras_hub.models.BertBackbone(
    vocabulary_size=VOCABULARY,
    num_layers=1,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
    max_sequence_length=LENGTH,
    dropout=0.0,
)
model = keras_hub.models.BertMaskedLM(backbone=backbone, preprocessor=None)
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.AdamW(1e-2),
    weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(x, y, sample_weight=weight, batch_size=16, epochs=2, verbose=0).history
print("RESULT", json.dumps({**history, "evaluated": model.evaluate(x, y, verbose=0)}))
