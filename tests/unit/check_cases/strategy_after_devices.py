"""After yahoo/TensorFlowOnSpark#490: listing logical devices starts the runtime, in a function."""

import keras
import tensorflow as tf
from tensorflow.distribute import MultiWorkerMirroredStrategy


def show_devices():
    print(tf.config.list_physical_devices("GPU"))
    print(tf.config.list_logical_devices("GPU"))


def main():
    show_devices()
    strategy = MultiWorkerMirroredStrategy()  # expect: strategy-after-ops
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(x, y)


if __name__ == "__main__":
    main()
