"""A hand-written TensorFlow loop: one traced step, one packed all-reduce, Adam's own kernel.

What is left when nothing general is: no fit, no metrics, no pipeline, no uneven batch.
"""

from __future__ import annotations

import os

import keras
import tensorflow as tf

from step_time.laps import Lap, Timer
from step_time.place import Place
from step_time.threads import limit_tensorflow
from step_time.workload import GLOBAL_BATCH, LEARNING_RATE, keras_model, samples


class Contender:
    def __init__(self, place: Place) -> None:
        limit_tensorflow()
        self._place = place
        self._strategy = None
        if place.world_size > 1:
            os.environ["TF_CONFIG"] = place.tf_config()
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        keras.utils.set_random_seed(1)
        self._steps = {}

    def block(self, name: str, steps: int, warm_up: int) -> Lap:
        if name not in self._steps:
            self._steps[name] = _traced_step(keras_model(keras, name), self._strategy)
        step = self._steps[name]
        x, y = samples(name, warm_up + steps)
        share = GLOBAL_BATCH // self._place.world_size
        first = self._place.rank * share
        timer = Timer()
        for i in range(warm_up + steps):
            if i == warm_up:
                timer.start()
            rows = slice(i * GLOBAL_BATCH + first, i * GLOBAL_BATCH + first + share)
            step(tf.constant(x[rows]), tf.constant(y[rows]))
        return timer.lap(steps)


def _traced_step(model, strategy):
    variables = [v.value for v in model.trainable_variables]
    moments = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in variables]
    powers = tf.Variable(1.0), tf.Variable(1.0)

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        gradients = tape.gradient(loss, variables)
        if strategy is not None:
            gradients = _mean_over_workers(gradients, strategy.num_replicas_in_sync)
        _adam(variables, moments, powers, gradients)
        return loss

    @tf.function(autograph=False)
    def step(x, y):
        return on_replica(x, y) if strategy is None else strategy.run(on_replica, args=(x, y))

    return step


def _mean_over_workers(gradients, workers):
    packed = tf.concat([tf.reshape(g, [-1]) for g in gradients], 0)
    context = tf.distribute.get_replica_context()
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, packed) / workers
    pieces = tf.split(total, [g.shape.num_elements() for g in gradients])
    return [tf.reshape(p, g.shape) for p, g in zip(pieces, gradients, strict=True)]


def _adam(variables, moments, powers, gradients):
    beta1, beta2 = 0.9, 0.999
    power1 = powers[0].assign(powers[0] * beta1)
    power2 = powers[1].assign(powers[1] * beta2)
    for variable, (mean, square), gradient in zip(variables, moments, gradients, strict=True):
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=power1,
            beta2_power=power2,
            lr=LEARNING_RATE,
            beta1=beta1,
            beta2=beta2,
            epsilon=1e-7,
            grad=gradient,
        )
