"""Recurrent layers with `stateful=True` keep a state for each row of the global batch.

A batch begins with the state in which the batch before it ended, row by row. A replica has some of
the rows, in each batch the same. Its layer begins with the states of these rows; what it ends with
goes to the other replicas, so that all have the state that one device has.

`RNN.call` is replaced, and `RNN._create_state_variables`, as a step may build the layer. Private
names used: that one, `RNN._expected_batch_size`, and `in_stateless_scope` of Keras's
`backend.common.stateless_scope`; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from phalanx.distributed.topology import replica_id_in_group, topology_of
from phalanx.gradients.gathered_batch import gather_rows, own_rows
from phalanx.gradients.replica_batch import FindBatch, ReplicaBatch


class _States:
    """Among a replica batch's extensions: by id, the states of the layer that is being called."""

    def __init__(self) -> None:
        self.ids: set[int] = set()


def states_of_recurrent_layers(find: FindBatch) -> Mapping[tuple[Any, str], Any]:
    """What to patch, so that layers keep the states of all rows and compute those of their own.

    Args:
        find: gives the share of the replica.
    """
    layer = keras.layers.RNN
    create = "_create_state_variables"
    return {
        (layer, "call"): _with_own_rows(layer.call, find),
        (layer, create): _outside_of_graphs(getattr(layer, create)),
    }


def _with_own_rows(original: Callable[..., Any], find: FindBatch) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, sequences: Any, initial_state: Any = None, *args: Any, **of: Any) -> Any:
        replica_batch = find() if self.stateful else None
        if replica_batch is None:
            return original(self, sequences, initial_state, *args, **of)
        self._expected_batch_size = None  # it would be compared with this replica's rows
        if initial_state is None:
            own = functools.partial(_own_rows, replica_batch, self.name)
            initial_state = keras.tree.map_structure(own, self.states)
        states = replica_batch.extensions.setdefault(_States, _States())
        states.ids = set(map(id, keras.tree.flatten(self.states)))
        try:
            return original(self, sequences, initial_state, *args, **of)
        finally:
            states.ids = set()

    return call


def _outside_of_graphs(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create(self: Any, batch_size: int) -> None:
        with tf.init_scope():  # a variable's value may come from no graph
            original(self, batch_size)

    return create


def build_for_all_rows(replica_batch: ReplicaBatch, layer: Any, sequences: Any) -> None:
    """Build a stateful layer that a step calls first, with states for the rows of a global batch.

    Args:
        replica_batch: the replica's.
        layer: any layer; others are left alone.
        sequences: what it is given: this replica's rows, of any known or unknown number.
    """
    if not isinstance(layer, (keras.layers.RNN, keras.layers.Bidirectional)) or layer.built:
        return
    shapes = replica_batch.batch_size_in_shapes
    if layer.stateful and shapes is not None and shapes.batch_size is not None:
        layer.build((shapes.batch_size, *sequences.shape[1:]))


def _own_rows(replica_batch: ReplicaBatch, layer: str, state: Any) -> Any:
    """This replica's rows of a state, where the batch has as many rows as the state."""
    rows = state.shape[0]
    message = (
        f"{layer} has stateful=True and a state for {rows} rows; found a batch with another number "
        "of rows (the first one below). Give it batches of one size: drop_remainder=True."
    )
    same = tf.debugging.assert_equal(replica_batch.total, rows, message)
    with tf.control_dependencies([] if same is None else [same]):
        return own_rows(tf.identity(state.value), replica_batch)


def is_state(replica_batch: ReplicaBatch, variable: Any) -> bool:
    """Whether a variable is a state of the recurrent layer that is being called."""
    states = replica_batch.extensions.get(_States)
    return states is not None and id(variable) in states.ids


def assign_rows_of_state(replica_batch: ReplicaBatch, variable: Any, rows: Any) -> None:
    """Give the state the rows of all replicas; in a local step, which exchanges nothing, its own.

    Args:
        replica_batch: the replica's.
        variable: Keras's.
        rows: what the layer ended with, for this replica's rows.
    """
    if importlib.import_module("keras.src.backend.common.stateless_scope").in_stateless_scope():
        return  # a model is built
    rows = tf.cast(rows, variable.value.dtype)
    if replica_batch.is_local:
        begin, count = replica_batch.start, replica_batch.count
        before = tf.convert_to_tensor(variable.value)
        whole = tf.concat([before[:begin], rows[:count], before[begin + count :]], axis=0)
    else:
        (whole,) = gather_rows([rows])
    strategy = tf.distribute.get_strategy()
    # TensorFlow assigns a variable without an aggregation in each replica only.
    own = strategy.experimental_local_results(variable.value)
    own[replica_id_in_group() - topology_of(strategy).first if len(own) > 1 else 0].assign(whole)
