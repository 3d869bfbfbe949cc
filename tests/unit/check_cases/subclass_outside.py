"""A model class of one's own, made outside the scope in the function that trains."""

import keras
import phalanx


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)


def train(x, y):
    strategy = phalanx.strategy()
    print(strategy.num_replicas_in_sync)
    net = Net()  # expect: model-outside-scope
    net.compile("adam", "mse")
    phalanx.fit(net, x, y)
