"""What a `tf.data.Dataset` is made of, read from its own objects: nothing is run or copied.

The only public way to get this from TensorFlow is `Dataset.__debug_string__`, which has names
only. (`tf.raw_ops.DatasetToGraphV2` has all of it, and copies arrays into its result; it is used
for interleaves only, which record nowhere else whether they are deterministic.)

Private names used: `DatasetV2._inputs`, `DatasetV2._functions`, with what it gives
(`StructuredFunctionWrapper.function`), `DatasetV1Adapter._dataset`, `TFRecordDatasetV2._impl`,
the classes' names, and the attributes
`_buffer_size`, `_seed`, `_seed2`, `_reshuffle_each_iteration`, `_batch_size`, `_drop_remainder`,
`_num_shards`, `_count`, `_filename`, `_num_parallel_calls`, `_num_parallel_reads`,
`_deterministic`, `_padded_shapes` and `_tensors` of the classes in `tensorflow/python/data/ops`;
`tensorflow.python.framework.op_def_registry` (whether an operation keeps state).
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_ENDS = re.compile(r"^_|Dataset(V\d)?$")
_RANDOM = re.compile(
    r"Random(Uniform|Standard|Shuffle|Gamma|Poisson)\w*|TruncatedNormal|Multinomial"
)
_PYTHON = re.compile(r"(Eager)?PyFunc(Stateless)?")
_MAP = re.compile(r"(Parallel)?Map(AndBatch)?Dataset(V\d)?")
_KEEPS_ROWS = (
    *("AssertCardinality", "Cache", "Filter", "IgnoreErrors", "Map", "Options", "ParallelMap"),
    *("Prefetch", "Repeat", "Shard", "Shuffle", "Skip", "Take", "TakeWhile", "Zip"),
)
_TFRECORD = "TFRecord"
_READS_ONLY = re.compile(
    r"(Stateful|)PartitionedCall|If|While|Case|Assert|ReadVariableOp|ResourceGather(Nd)?"
    r"|VarIsInitializedOp|VariableShape|LookupTable(Find|Size|Export)V2"
)
"""Operations with state that they only read, or that their own functions have."""
_LEGACY = "Defun"  # what a function is that TensorFlow 1 traced: it cannot be called


@dataclass(frozen=True, kw_only=True, eq=False)
class Transformation:
    """One step of a dataset's pipeline.

    Attributes:
        kind: the name of TensorFlow's class without underscore and "Dataset": "Shuffle",
            "ParallelMap", "TFRecord" ...
        dataset: the dataset that ends with this step; to iterate it is to run up to here.
        inputs: the steps before.
        buffer_size: of a shuffle or a prefetch; -1 for AUTOTUNE.
        seeds: of a shuffle; (0, 0) draws another order in every process.
        reshuffles: whether a shuffle gives another order in each pass.
        batch_size: of a batch.
        drop_remainder: of a batch.
        shards: of a shard: how many there are.
        count: of repeat and take; -1 forever.
        filename: of a cache; "" in memory.
        parallel: whether several elements or files are worked on at a time.
        deterministic: "true", "false", or "default", which the dataset's options decide.
        random: whether its function draws random numbers whose state is kept.
        seeded: whether all of those have a seed.
        python: whether its function calls back into Python.
        state: the operations of its function that change a state: random numbers, variables that
            are assigned, Python, files that are written.
        maps_inside: whether its function makes datasets that have maps.
        fixed_lengths: whether a padded batch pads each of its tensors to a length that is given.
        bytes_in_memory: of a source: the size of its tensors.
    """

    kind: str
    dataset: Any
    inputs: tuple[Transformation, ...]
    buffer_size: int | None = None
    seeds: tuple[int, int] | None = None
    reshuffles: bool = False
    batch_size: int | None = None
    drop_remainder: bool = False
    shards: int | None = None
    count: int | None = None
    filename: str | None = None
    parallel: bool = False
    deterministic: str = "default"
    random: bool = False
    seeded: bool = True
    python: bool = False
    state: tuple[str, ...] = ()
    maps_inside: bool = False
    fixed_lengths: bool = True
    bytes_in_memory: int = 0

    @property
    def bytes_below(self) -> int:
        """The size of the tensors of all sources of this step."""
        return sum(step.bytes_in_memory for step in self.walk())

    def walk(self) -> Iterator[Transformation]:
        """All steps from the sources to this one, each after its inputs, each once."""
        seen: set[int] = set()

        def visit(step: Transformation) -> Iterator[Transformation]:
            if id(step) in seen:
                return
            seen.add(id(step))
            for one in step.inputs:
                yield from visit(one)
            yield step

        yield from visit(self)


def transformations(dataset: Any) -> Transformation:
    """The last step of `dataset`, with all before it."""
    known: dict[int, Transformation] = {}

    def read(one: Any) -> Transformation:
        one = getattr(one, "_dataset", one)
        if id(one) not in known:
            known[id(one)] = _read(one, tuple(read(each) for each in one._inputs()))
        return known[id(one)]

    return read(dataset)


def batch_size_of(dataset: Any) -> int | None:
    """The rows that its last batch step asks for; None where others may come after it."""
    step = transformations(dataset)
    while step.batch_size is None:
        if not step.inputs or step.kind not in _KEEPS_ROWS:
            return None
        step = step.inputs[0]
    return step.batch_size


def calls_python(dataset: Any) -> bool:
    """Whether some step of it runs in Python, whose state TensorFlow cannot save.

    An iterator over such a dataset can be saved at times all the same: once Python has given all it
    had and what it gave waits in a buffer. It could not be restored.
    """

    def one_of(step: Transformation) -> bool:
        return step.python or step.kind == "Generator" or any(map(one_of, step.inputs))

    return one_of(transformations(dataset))


def _read(dataset: Any, inputs: tuple[Transformation, ...]) -> Transformation:
    kind = _ENDS.sub("", _ENDS.sub("", type(dataset).__name__))
    found = _in_functions(dataset)
    seeds = _number(dataset, "_seed"), _number(dataset, "_seed2")
    calls = _number(dataset, "_num_parallel_calls") or _number(dataset, "_num_parallel_reads")
    is_reader = kind == _TFRECORD and hasattr(dataset, "_impl")
    return Transformation(
        kind=kind,
        dataset=dataset,
        inputs=inputs,
        buffer_size=_number(dataset, "_buffer_size"),
        seeds=seeds if None not in seeds else None,  # type: ignore[arg-type]
        reshuffles=bool(getattr(dataset, "_reshuffle_each_iteration", False)),
        batch_size=_number(dataset, "_batch_size"),
        drop_remainder=bool(_value(dataset, "_drop_remainder")),
        shards=_number(dataset, "_num_shards"),
        count=_number(dataset, "_count"),
        filename=_text(dataset, "_filename"),
        parallel=calls is not None or kind.startswith("Parallel"),
        deterministic=_deterministic(dataset._impl if is_reader else dataset),
        random=bool(found.drawn),
        seeded=all(found.drawn),
        python=found.python,
        state=tuple(dict.fromkeys(found.state)),
        maps_inside=found.maps,
        fixed_lengths=_has_fixed_lengths(dataset),
        bytes_in_memory=sum(map(_bytes_of, getattr(dataset, "_tensors", ()))),
    )


def _value(dataset: Any, name: str) -> Any:
    value = getattr(dataset, name, None)
    return tf.get_static_value(value) if tf.is_tensor(value) else value


def _number(dataset: Any, name: str) -> int | None:
    value = _value(dataset, name)
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def _text(dataset: Any, name: str) -> str | None:
    value = _value(dataset, name)
    value = value.item() if hasattr(value, "item") else value
    return value.decode() if isinstance(value, bytes) else value


@dataclass(kw_only=True)
class _Found:
    """What is in a step's functions: for each random draw whether it has a seed, and so on."""

    drawn: list[bool] = field(default_factory=list)
    python: bool = False
    state: list[str] = field(default_factory=list)
    maps: bool = False


def _in_functions(dataset: Any) -> _Found:
    found = _Found()
    for wrapper in dataset._functions():
        if not hasattr(wrapper.function, "captured_inputs"):
            found.state.append(_LEGACY)
            continue
        for node in _nodes(wrapper.function.graph.as_graph_def()):
            found.python = found.python or bool(_PYTHON.fullmatch(node.op))
            found.maps = found.maps or bool(_MAP.fullmatch(node.op))
            if _RANDOM.fullmatch(node.op):
                found.drawn.append(bool(node.attr["seed"].i or node.attr["seed2"].i))
            if _keeps_state(node.op) and not _READS_ONLY.fullmatch(node.op):
                found.state.append(node.op)
    return found


def _keeps_state(operation: str) -> bool:
    registry = importlib.import_module("tensorflow.python.framework.op_def_registry")
    definition = registry.get(operation)
    return definition is not None and definition.is_stateful


def _has_fixed_lengths(dataset: Any) -> bool:
    shapes = map(tf.get_static_value, tf.nest.flatten(getattr(dataset, "_padded_shapes", ())))
    return all(shape is not None and (shape >= 0).all() for shape in shapes)


def element_bytes(step: Transformation) -> int:
    """What an element of `step` takes in memory, where its shapes say it."""
    return sum(map(_bytes_of, tf.nest.flatten(step.dataset.element_spec)))


def _bytes_of(tensor: Any) -> int:
    """A rough size: strings count as file names."""
    if not isinstance(tensor, (tf.Tensor, tf.TensorSpec)) or not tensor.shape.is_fully_defined():
        return 0
    each = 100 if tensor.dtype == tf.string else tensor.dtype.size
    return int(math.prod(tensor.shape) * each)


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _deterministic(dataset: Any) -> str:
    kept = getattr(dataset, "_deterministic", None)
    if isinstance(kept, str) or "Interleave" not in type(dataset).__name__:
        return kept if isinstance(kept, str) else "default"
    graph = tf.compat.v1.GraphDef()
    variant = tf.nest.flatten(dataset, expand_composites=True)[0]
    with_state = 1  # tf.data.experimental.ExternalStatePolicy.IGNORE: nothing will be run
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=with_state)
    graph.ParseFromString(text.numpy())
    for node in reversed(graph.node):
        if "Interleave" in node.op:
            return node.attr["deterministic"].s.decode() or "default"
    return "default"
