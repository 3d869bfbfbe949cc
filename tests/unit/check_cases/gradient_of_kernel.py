"""After keras-team/keras#115, #2226 and #14066: where are a layer's gradients?"""

import keras
import tensorflow as tf


class Gradients(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        for layer in self.model.layers:
            tf.summary.histogram(layer.name, layer.kernel.gradient, step=epoch)  # expect: no-such-gradient
        for number, weight in enumerate(self.model.trainable_weights):
            print(number, weight.grad)  # expect: no-such-gradient
        print(self.model.layers[0].weights[0].gradient)  # expect: no-such-gradient
        model = self.model
        print(model.optimizer.get_gradients(model.total_loss, model.weights))  # expect: no-such-gradient


board = keras.callbacks.TensorBoard(
    "logs",
    histogram_freq=1,
    write_grads=True,  # expect: no-such-gradient
)
