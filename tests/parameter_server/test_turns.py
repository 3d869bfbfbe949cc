"""Two workers never see the half of each other's update of a variable."""

import numpy as np
import pytest
from server_cluster import led

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]

STEPS = 40


def trained():
    """What is left of slots that each update reads, and writes one late after the other."""
    import keras
    import tensorflow as tf

    import phalanx

    class Halves(keras.optimizers.Optimizer):
        """Counts its updates in two slots; `torn` is how far apart it ever found them."""

        def build(self, variables):
            super().build(variables)
            names = ("first", "second", "torn")
            self.slots = {
                name: [self.add_variable_from_reference(v, name=name) for v in variables]
                for name in names
            }

        def update_step(self, gradient, variable, learning_rate):
            index = self._get_variable_index(variable)
            first, second, torn = (slots[index] for slots in self.slots.values())
            self.assign_add(torn, tf.abs(first - second))
            self.assign(first, first + 1.0)
            late = tf.fill((300, 300), tf.reduce_max(first))
            for _ in range(10):
                late = tf.nn.softmax(late @ late)
            self.assign(second, second + tf.minimum(1.0, 1.0 + tf.reduce_sum(late)))
            self.assign_sub(variable, learning_rate * gradient)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign(tf.zeros((2, 1)))
    model.compile(Halves(0.01), "mse")
    x = np.ones((STEPS * 4, 2), "float32")
    phalanx.fit(model, x, x[:, :1], batch_size=4, epochs=1, verbose=0)
    slots = model.optimizer.slots
    return {name: np.array(kept[0].numpy()).max() for name, kept in slots.items()}


def test_an_update_is_seen_complete_or_not_at_all():
    found = led(trained, workers=2, servers=1)
    assert found == {"first": STEPS, "second": STEPS, "torn": 0}
