"""A causal language model of KerasHub's: a small GPT-2 backbone, trained and generating."""

import json

import keras
import keras_hub
import numpy as np

VOCABULARY, LENGTH = 30, 10

keras.utils.set_random_seed(62)
rng = np.random.default_rng(62)
tokens = (rng.integers(2, VOCABULARY, (61, 1)) + np.arange(LENGTH + 1)) % (VOCABULARY - 2) + 2
x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((61, LENGTH), "int32")}
y = tokens[:, 1:]

backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=VOCABULARY,
    num_layers=1,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
    max_sequence_length=LENGTH,
    dropout=0.0,
)
model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.Adam(1e-2),
    weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
    sampler="greedy",
)
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history
prompt = {
    "token_ids": np.where(np.arange(LENGTH) < 4, tokens[:5, :-1], 0),
    "padding_mask": np.tile(np.arange(LENGTH) < 4, (5, 1)).astype("int32"),
}
generated = model.generate(prompt, stop_token_ids=None)
result = {**history, "generated": np.array(generated["token_ids"]).tolist()}
print("RESULT", json.dumps(result))
