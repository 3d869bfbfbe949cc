"""Knowledge distillation: a small student learns from the outputs of a larger teacher."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(81)


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(
        self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3
    ):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, training=True
    ):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def network(*widths):
    model = keras.Sequential([keras.Input((9,))])
    for width in widths:
        model.add(layers.Dense(width, activation="relu"))
    model.add(layers.Dense(5))
    return model


rng = np.random.default_rng(82)
x = rng.normal(size=(181, 9)).astype("float32")
y = np.argmax(x @ rng.normal(size=(9, 5)) + np.abs(x[:, :5]), axis=1)

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher = network(32, 32)
teacher.compile(keras.optimizers.Adam(0.01), loss, metrics=["sparse_categorical_accuracy"])
taught = teacher.fit(x, y, batch_size=37, epochs=4, verbose=2).history

distiller = Distiller(student=network(8), teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(0.01),
    metrics=["sparse_categorical_accuracy"],
    student_loss_fn=loss,
    distillation_loss_fn=keras.losses.KLDivergence(),
)
distilled = distiller.fit(x, y, batch_size=37, epochs=4, verbose=2).history
result = {
    "teacher": taught,
    "distilled": distilled,
    "evaluated": distiller.evaluate(x, y, batch_size=50, verbose=0),
}
print("RESULT", json.dumps(result))
