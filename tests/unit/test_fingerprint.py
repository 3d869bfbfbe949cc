"""Fingerprints of values: equal in two processes, and only where the values are."""

import os
import subprocess
import sys
import threading

import hypothesis.extra.numpy as arrays_of
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx
from phalanx.data.fingerprint import UnkeyableError, content_digest, fingerprint
from phalanx.data.sources.resolve_source import resolve_source

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


def of(value):
    return fingerprint(value, "value")


def shown(value):
    """Text that is equal for equal values, with types, signs of zero and the order of keys."""
    return repr(value)


@given(PLAIN, PLAIN)
@settings(deadline=None)
def test_equal_fingerprints_are_of_equal_values(one, other):
    assert (of(one) == of(other)) == (shown(one) == shown(other))


@given(PLAIN)
@settings(deadline=None)
def test_a_copy_has_the_same(value):
    copied = eval(repr(value), {"inf": float("inf")})
    assert of(copied) == of(value)


DTYPES = st.sampled_from(["int8", "int64", "float32", "float64", "bool", "uint8"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(max_dims=2, max_side=3))
)


def read_by_number(source):
    numbers = tf.range(source.num_samples, dtype=tf.int64)
    samples = [tf.nest.flatten(source.read(number)) for number in numbers]
    return [[(x.dtype.name, x.shape, x.numpy().tobytes()) for x in sample] for sample in samples]


def key_of(source):
    return of((type(source).__name__, source.cache_key_parts()))


@given(ARRAYS, ARRAYS)
@settings(deadline=None, max_examples=60)
def test_sources_of_equal_keys_give_equal_samples(one, other):
    sources = [resolve_source(array) for array in (one, other, other.copy())]
    keys = [key_of(source) for source in sources]
    assert keys[1] == keys[2]
    if keys[0] == keys[1]:
        assert read_by_number(sources[0]) == read_by_number(sources[1])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=3), st.integers(0, 2), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_one_changed_value_changes_the_key(values, place, value):
    place %= len(values)
    other = [*values[:place], value, *values[place + 1 :]]
    for kind in (
        list,
        np.array,
        lambda v: phalanx.data.mix([np.array(v), np.zeros(2, int)], [1, 1]),
    ):
        keys = [key_of(resolve_source(kind(v))) for v in (values, other)]
        assert (keys[0] == keys[1]) == (values == other)


TEXTS = st.lists(st.binary(max_size=3), min_size=1, max_size=4)


@given(TEXTS, TEXTS)
@settings(deadline=None, max_examples=60)
def test_text_is_not_mixed_up(one, other):
    keys = [key_of(resolve_source(np.array(v, object))) for v in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_files_of_equal_keys_have_equal_content(tmp_path_factory, one, other):
    from phalanx.data.sources.files import stamps

    path = tmp_path_factory.mktemp("files") / "x"
    found = []
    for content in (one, other):
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        found.append(of(stamps([str(path)])))
    if found[0] == found[1]:
        assert one == other


def test_large_content_is_hashed_in_parts(monkeypatch):
    import phalanx.data.fingerprint as module

    monkeypatch.setattr(module, "_CHUNK", 8)
    contents = [bytes(20), bytes(19) + b"1", b"1" + bytes(19), bytes(21), bytes(8), bytes(16)]
    assert len({content_digest(content) for content in contents}) == len(contents)


def test_values_that_are_equal_and_not_the_same():
    values = [
        1, 1.0, True, "1", b"1", 1 + 0j, (1,), [1], {1}, frozenset([1]), {1: None}, np.int64(1),
        np.float32(1), np.array(1), np.array([1]), tf.constant(1), tf.constant([1]), None, ...,
        np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(6), np.zeros(6, "f4"), np.zeros(6, "i4"),
        0.0, -0.0, [[1], 2], [[1, 2]], [1, 2], ["a", "bc"], ["ab", "c"], range(3), range(4),
        tf.bfloat16, tf.float16, int, float, np.dtype("f4"), np.dtype("f8"), len, max,
        "a".upper, "b".upper, str.upper, str.lower,
    ]  # fmt: skip
    assert len({of(value) for value in values}) == len(values)


def test_values_that_hold_themselves():
    one, other = [], []
    one.append(one)
    other.append([other])
    assert of(one) != of(other)
    assert of(one) == of(one)


def test_code_that_ran_often_is_the_same():
    def function(x):
        total = 0
        for n in range(x):
            total += n
        return total

    before = of(function)
    for _ in range(200):
        function(50)
    assert of(function) == before


def test_what_differs_in_code_alone():
    def catches(x):
        try:
            return x()
        except ValueError:
            return 1

    functions = [
        lambda x: x + 1, lambda x: x + 2, lambda x: x - 1, lambda x: x.a, lambda x: x.b,
        lambda x, y=1: x + 1, lambda *x: x, lambda **x: x, lambda x: x in {1, 2},
        lambda x: x in {1, 3}, lambda x: (lambda: 1), lambda x: (lambda: 2), catches,
        lambda x: tf.abs(x), lambda x: tf.sign(x), lambda x: np.abs(x),
    ]  # fmt: skip
    assert len({of(function) for function in functions}) == len(functions)


def test_a_name_or_comment_does_not_count():
    def one(x):
        # A comment.
        return x + 1

    def other(x):
        return x + 1

    assert of(one) == of(other)


class Stateful:
    def __init__(self, **state):
        self.__dict__.update(state)

    def __getstate__(self):
        return {}  # which pickle would store

    def __call__(self, x):
        return x


class Slots:
    __slots__ = ("a", "b")


class Numbers(list):
    pass


class Word(str):
    pass


def test_objects():
    slots = [Slots(), Slots(), Slots()]
    slots[1].a = slots[2].b = 1
    numbers = [Numbers([1]), Numbers([2]), Numbers([1])]
    numbers[2].extra = 1
    masked = [np.ma.array([1, 2], mask=[0, n]) for n in (0, 1)]
    values = [
        Stateful(a=1), Stateful(a=2), Stateful(b=1), Stateful(a=1, b=1), *slots, *numbers,
        Word("a"), Word("b"), "a", *masked, np.array([1, 2]), np.random.default_rng(1),
        np.random.default_rng(2),
    ]  # fmt: skip
    assert len({of(value) for value in values}) == len(values)
    assert of(Stateful(a=1, b=2)) == of(Stateful(b=2, a=1))


def uses_open(path):
    with open(path) as file:
        return file.read()


def loads(path):
    return np.load(path)


def evaluates(text):
    return eval(text)


def takes_a_module(x):
    return vars(phalanx_of_a_user)


phalanx_of_a_user = sys.modules[__name__]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: threading.Lock(), "value is a lock, which cannot be compared"),
        (lambda: sys.stdout, "value is a .*, which cannot be compared"),
        (lambda: (n for n in range(3)), "value is a generator"),
        (lambda: tf.Variable(1), "value is a ResourceVariable, whose values change"),
        (lambda: tf.keras.layers.Rescaling(2.0), "value is a Rescaling, whose values change"),
        (lambda: tf.data.Dataset.range(2), "is a tensor whose value cannot be read"),
        (
            lambda: uses_open,
            "value, function 'uses_open', global 'open' uses builtins.open",
        ),
        (lambda: loads, "global 'np' uses numpy.load"),
        (lambda: np.load, "value uses numpy.load"),
        (lambda: evaluates, "uses builtins.eval"),
        (lambda: takes_a_module, "global 'phalanx_of_a_user' is the module .* as a whole"),
        (lambda: [1, {"a": threading.Lock()}], "value, item 1, item 'a' is a lock"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UnkeyableError, match=message):
        of(make())


def test_an_object_in_a_set_that_holds_it():
    value = Stateful()
    value.members = {value}
    with pytest.raises(UnkeyableError, match="inside a set"):
        of(value)


SCRIPT = """
import collections, dataclasses, enum, functools, re
import numpy as np
import tensorflow as tf
from phalanx.data.fingerprint import fingerprint

@dataclasses.dataclass
class Options:
    size: int = 3
    names: set = dataclasses.field(default_factory=lambda: {"x", "y", "z"})

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

Point = collections.namedtuple("Point", "x y")
WORDS = {"a", "b", "c", ("d", 1), None}
OPTIONS = Options()

def helper(x):
    return x if x in WORDS else OPTIONS.size

@functools.lru_cache
def remembered(x):
    return Color.RED, Point(1, 2), x in {"one", "two", "three"}

@tf.function
def function(x, table=frozenset(["p", "q", "r"])):
    import os.path
    return tf.cast(helper(x), tf.float32), re.compile("a|b"), remembered(x), np.add(x, 1)

print(fingerprint([function, WORDS, {"a": {1.5, "b"}}, Options, Color], "map"))
"""


@pytest.mark.full
@pytest.mark.process
def test_processes_agree(tmp_path):
    """Whatever the order of sets, and whether Python compiles the code or reads it compiled."""
    (tmp_path / "program.py").write_text(SCRIPT)
    found = set()
    for seed in ("0", "1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        }
        command = [sys.executable, "-c", "import program"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
    assert len(found.pop().strip()) == 40
