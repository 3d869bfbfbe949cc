"""Batches whose rows refer to one another: graphs that a map joins, one graph, a few examples."""

import keras
import numpy as np
import tensorflow as tf
from equivalence_case import features, labels

NODES = 23
FEATURES = 6


def adjacency():
    rng = np.random.default_rng(4)
    edges = (rng.random((NODES, NODES)) < 0.2) + np.eye(NODES)
    return (edges / edges.sum(axis=1, keepdims=True)).astype("float32")


class GraphLayer(keras.layers.Layer):
    """A graph convolution over the nodes of a batch (Kipf and Welling, arXiv:1609.02907)."""

    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units)

    def call(self, inputs):
        nodes, edges = inputs
        nodes = self.dense(nodes)
        if isinstance(edges, tf.SparseTensor):
            return tf.sparse.sparse_dense_matmul(edges, nodes)
        return tf.matmul(edges, nodes)

    def compute_output_shape(self, shapes):
        return (*shapes[0][:-1], self.dense.units)


class GraphLayerOfConstant(GraphLayer):
    """The same where the graph is no input; `edges` are a matrix, sparse or dense."""

    def __init__(self, units, edges):
        super().__init__(units)
        self.edges = edges

    def call(self, nodes):
        return super().call((nodes, self.edges))

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.dense.units)


def classifier_of_nodes(*, is_sparse=False):
    nodes, edges = keras.Input((FEATURES,)), keras.Input((NODES,), sparse=is_sparse)
    hidden = keras.layers.Dropout(0.2, seed=3)(GraphLayer(8)([nodes, edges]))
    hidden = keras.layers.BatchNormalization()(keras.ops.tanh(hidden))
    return compiled(keras.Model([nodes, edges], GraphLayer(3)([hidden, edges])))


def classifier_over_constant_graph(*, is_sparse=False):
    edges = tf.constant(adjacency())
    edges = tf.sparse.from_dense(edges) if is_sparse else edges
    layers = [GraphLayerOfConstant(8, edges), keras.layers.ReLU(), GraphLayerOfConstant(3, edges)]
    return compiled(keras.Sequential(layers))


def one_graph():
    x = [features(NODES), adjacency()]
    return {"x": x, "y": labels(NODES), "batch_size": NODES, "epochs": 3}


def one_sparse_graph():
    edges = tf.sparse.from_dense(adjacency())
    one = tf.data.Dataset.from_tensors(((features(NODES), edges), labels(NODES)))
    return {"x": one.repeat(2)}


def nodes_alone():
    return {"x": features(NODES), "y": labels(NODES), "batch_size": NODES, "epochs": 3}


class Messages(keras.layers.Layer):
    """Each atom gets what its neighbours send; each molecule the mean of its atoms."""

    def __init__(self):
        super().__init__()
        self.send = keras.layers.Dense(FEATURES, activation="tanh")

    def call(self, inputs):
        atoms, pairs, molecules = inputs
        for _ in range(2):
            sent = self.send(tf.gather(atoms, pairs[:, 1]))
            atoms += tf.math.unsorted_segment_sum(sent, pairs[:, 0], tf.shape(atoms)[0])
        return tf.math.segment_mean(atoms, molecules)

    def compute_output_shape(self, shapes):
        return (None, FEATURES)


def classifier_of_molecules():
    atoms, pairs = keras.Input((FEATURES,)), keras.Input((2,), dtype="int64")
    molecules = keras.Input((), dtype="int32")
    values = Messages()([atoms, pairs, molecules])
    values = keras.layers.BatchNormalization()(keras.layers.Dropout(0.2, seed=3)(values))
    return compiled(keras.Model([atoms, pairs, molecules], keras.layers.Dense(3)(values)))


def joined_graphs(n=22, batch_size=8, seed=0):
    """Batches of molecules, which a map joins, as Keras's example of message passing does."""
    rng = np.random.default_rng(seed)
    sizes, bonds = rng.integers(2, 7, n), rng.integers(3, 9, n)
    atoms = tf.RaggedTensor.from_row_lengths(features(sizes.sum(), seed), sizes)
    ends = np.concatenate(
        [rng.integers(0, sizes[i], (number, 2)) for i, number in enumerate(bonds)]
    )
    pairs = tf.RaggedTensor.from_row_lengths(ends, bonds)

    def joined(atoms, pairs, y):
        number = atoms.row_lengths()
        first = tf.cumsum(number, exclusive=True)
        of_pairs = tf.repeat(first, pairs.row_lengths())[:, None]
        molecules = tf.cast(atoms.value_rowids(), tf.int32)
        return (atoms.values, pairs.values + of_pairs, molecules), y

    each = tf.data.Dataset.from_tensor_slices((atoms, pairs, labels(n, seed)))
    return {"x": each.batch(batch_size).map(joined)}


class Prototypes(keras.layers.Layer):
    """How near each query is to the mean of two examples of each class (arXiv:1703.05175)."""

    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Dense(4, activation="tanh")

    def call(self, inputs):
        examples, queries = (self.embed(one) for one in inputs)
        means = tf.reduce_mean(tf.reshape(examples, (3, 2, 4)), axis=1)
        return -tf.reduce_sum((queries[:, None] - means) ** 2, axis=-1)

    def compute_output_shape(self, shapes):
        return (shapes[1][0], 3)


def classifier_by_examples():
    examples, queries = keras.Input((FEATURES,)), keras.Input((FEATURES,))
    return compiled(keras.Model([examples, queries], Prototypes()([examples, queries])))


def few_examples():
    def tasks(n, seed):
        return features(5 * n, seed).reshape(5, n, FEATURES)

    given = ((tasks(6, 1), tasks(9, 2)), labels(45).reshape(5, 9))
    return {"x": tf.data.Dataset.from_tensor_slices(given).take(3)}


def compiled(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model
