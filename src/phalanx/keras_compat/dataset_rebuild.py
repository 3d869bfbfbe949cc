"""Steps of a `tf.data.Dataset` once more, over other inputs: the same functions, seeds and state.

Functions are called as TensorFlow traced them, not traced again: what their Python reads may have
changed since.

Private names used: `DatasetV2._functions` with `StructuredFunctionWrapper.function` and
`output_structure`, `tensorflow.python.data.util.structure`, and the attributes `_num_shards`,
`_index`, `_count`, `_expected_cardinality`, `_datasets`, `_num_parallel_calls`, `_padded_shapes`,
`_padding_values`, `_buffer_size`, `_seed`, `_seed2` and `_reshuffle_each_iteration` of the classes
in `tensorflow/python/data/ops`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from phalanx.keras_compat.dataset_graph import Transformation

_IGNORE = 1  # tf.data.experimental.ExternalStatePolicy.IGNORE: nothing will be run
_PARALLEL = "Parallel"
MOST_BYTES = 64 * 2**20
"""Of tensors in memory below a shuffle, which are copied to find its generator."""


def function_of(step: Transformation) -> Callable[[Any], Any]:
    """The function of a map, of an element (a tuple where it has several parts)."""
    structure = importlib.import_module("tensorflow.python.data.util.structure")
    (wrapper,) = step.dataset._functions()
    spec = step.inputs[0].dataset.element_spec

    def call(element: Any) -> Any:
        results = wrapper.function(*structure.to_tensor_list(spec, element))
        return structure.from_compatible_tensor_list(wrapper.output_structure, results)

    return call


def function_of_rows(step: Transformation) -> Callable[[Any], Any]:
    """The function of a map of batches, for batches of any number of rows."""
    (wrapper,) = step.dataset._functions()
    graph = wrapper.function.graph
    call = function_of(step)
    if all(one.shape[0] is None for one in graph.inputs[: len(graph.inputs) - len(graph.captures)]):
        return call

    def free(value: Any) -> Any:
        shape = [None, *value.shape[1:]] if value.shape.rank else []
        return tf.compat.v1.placeholder_with_default(value, shape)

    return lambda element: tf.nest.map_structure(free, call(element))


def map_like(step: Transformation, dataset: Any, function: Callable[..., Any]) -> Any:
    """`dataset.map(function)`, as parallel as `step`."""
    if not step.kind.startswith(_PARALLEL):
        return dataset.map(function)
    return dataset.map(
        function, num_parallel_calls=step.dataset._num_parallel_calls, deterministic=True
    )


def batch_like(step: Transformation, dataset: Any, size: int) -> Any:
    """Batches of `size` of `(number, element)`, as `step` makes them of elements.

    Args:
        step: a batch or a padded batch.
        dataset: numbers are int32.
        size: elements of a batch.
    """
    if step.kind == "PaddedBatch":
        return dataset.padded_batch(
            size,
            padded_shapes=([], step.dataset._padded_shapes),
            padding_values=(tf.zeros([], tf.int32), step.dataset._padding_values),
        )
    if not step.kind.startswith(_PARALLEL):
        return dataset.batch(size)
    calls = step.dataset._num_parallel_calls
    return dataset.batch(size, num_parallel_calls=calls, deterministic=True)


def zip_parts(step: Transformation) -> Any:
    """The inputs of a zip, as numbers in the structure in which it combines them."""
    structure = step.dataset._datasets
    return tf.nest.pack_sequence_as(structure, range(len(tf.nest.flatten(structure))))


def rebuild(step: Transformation, inputs: Sequence[Any]) -> Any:
    """`step` over other inputs, of one of `REBUILT`."""
    return REBUILT[step.kind](step, *inputs)


def cached_rebuild(step: Transformation, dataset: Any, memo: tuple[Any, ...]) -> Any:
    """`dataset` with a cache in memory, the one that was made for `step` and `memo` before.

    It lives as long as the cache of the script, so that each `fit` finds what the last one read.
    """
    made = step.dataset.__dict__.setdefault("_phalanx_rebuilt", {})
    if memo not in made:
        made[memo] = dataset.cache()
    return made[memo]


def shuffle_like(step: Transformation, dataset: Any, buffer_size: Any) -> Any:
    """Shuffle as `step` does, and draw the next order from the same state.

    How often the shuffle of the script was opened before decides the order of the next pass.
    """
    structure = importlib.import_module("tensorflow.python.data.util.structure")
    original, spec = step.dataset, dataset.element_spec
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=buffer_size,
        seed=original._seed,
        seed2=original._seed2,
        seed_generator=_seed_generator(original),
        reshuffle_each_iteration=original._reshuffle_each_iteration,
        output_types=structure.get_flat_tensor_types(spec),
        output_shapes=structure.get_flat_tensor_shapes(spec),
    )
    return tf.data.experimental.from_variant(variant, spec)


def _seed_generator(shuffle: Any) -> Any:
    """The resource from which a shuffle draws the seed of each pass; it lives as long as that."""
    graph = tf.compat.v1.GraphDef()
    variant = tf.data.experimental.to_variant(shuffle)
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE)
    graph.ParseFromString(text.numpy())
    nodes = {node.name: node for node in graph.node}
    (result,) = (node for node in graph.node if node.op == "_Retval")
    generator = nodes[nodes[result.input[0]].input[4]]
    return tf.io.parse_tensor(generator.attr["value"].tensor.SerializeToString(), tf.resource)


def _zip(step: Transformation, *datasets: Any) -> Any:
    return tf.data.Dataset.zip(tf.nest.pack_sequence_as(step.dataset._datasets, datasets))


def _assert_cardinality(step: Transformation, dataset: Any) -> Any:
    return dataset.apply(
        tf.data.experimental.assert_cardinality(step.dataset._expected_cardinality)
    )


REBUILT: dict[str, Callable[..., Any]] = {
    "AssertCardinality": _assert_cardinality,
    "Prefetch": lambda step, dataset: dataset.prefetch(step.buffer_size),
    "Repeat": lambda step, dataset: dataset.repeat(step.dataset._count),
    "Shard": lambda step, dataset: dataset.shard(step.dataset._num_shards, step.dataset._index),
    "Shuffle": lambda step, dataset: shuffle_like(step, dataset, step.dataset._buffer_size),
    "Skip": lambda step, dataset: dataset.skip(step.dataset._count),
    "Take": lambda step, dataset: dataset.take(step.dataset._count),
    "Zip": _zip,
}
"""Steps whose result depends on the order and the number of elements, not on their values."""
