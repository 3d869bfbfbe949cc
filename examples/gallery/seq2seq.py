"""Sequence to sequence: an LSTM encoder and decoder learn to reverse digits."""

import json

import keras
import numpy as np
from keras import layers

DIGITS, LENGTH, WIDTH = 6, 5, 24
START = DIGITS

keras.utils.set_random_seed(101)

rng = np.random.default_rng(102)
source = rng.integers(0, DIGITS, (143, LENGTH))
target = source[:, ::-1]
one_hot = np.eye(DIGITS + 1, dtype="float32")
encoder_input_data = one_hot[source]
decoder_input_data = one_hot[np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)]
decoder_target_data = one_hot[target]

encoder_inputs = keras.Input(shape=(None, DIGITS + 1))
encoder = layers.LSTM(WIDTH, return_state=True)
_, state_h, state_c = encoder(encoder_inputs)
decoder_inputs = keras.Input(shape=(None, DIGITS + 1))
decoder_lstm = layers.LSTM(WIDTH, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=[state_h, state_c])
decoder_dense = layers.Dense(DIGITS + 1, activation="softmax")
model = keras.Model([encoder_inputs, decoder_inputs], decoder_dense(decoder_outputs))

model.compile(
    optimizer=keras.optimizers.RMSprop(0.005),
    loss="categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(
    [encoder_input_data, decoder_input_data],
    decoder_target_data,
    batch_size=33,
    epochs=5,
    validation_split=0.2,
    verbose=2,
).history

# Inference models share the layers.
encoder_model = keras.Model(encoder_inputs, [state_h, state_c])
state_inputs = [keras.Input((WIDTH,)), keras.Input((WIDTH,))]
outputs, h, c = decoder_lstm(decoder_inputs, initial_state=state_inputs)
decoder_model = keras.Model([decoder_inputs, *state_inputs], [decoder_dense(outputs), h, c])


def decode(sequences):
    states = encoder_model.predict(sequences, verbose=0)
    token = np.repeat(one_hot[None, None, START], len(sequences), axis=0)
    written, sure = [], []
    for _ in range(LENGTH):
        probabilities, *states = decoder_model.predict([token, *states], verbose=0)
        best = np.argmax(probabilities[:, 0], axis=-1)
        written.append(best)
        sure.append(np.max(probabilities))
        token = one_hot[best][:, None]
    return np.stack(written, axis=1), sure


decoded, sure = decode(encoder_input_data[:7])
result = {
    **history,
    "decoded": decoded.tolist(),
    "sure": [float(value) for value in sure],
}
print("RESULT", json.dumps(result))
