"""The fingerprint of a Python value: equal in two processes only where the value is the same.

A cache on disk holds samples of earlier processes. Its key must change with everything that
decides what a sample is: the bytes of an array, the code of a function, and all that this code
uses. `pickle` and cloudpickle answer another question: they store an imported function by its name,
and their bytes differ between processes for equal values, such as sets.

- Arrays and text count by content, to the last byte.
- A function counts by its code, defaults, closure and attributes, and by the globals that the code
  names, each by its own content. Of a module it counts the attributes that the code names.
- An object counts by its class and its state. A class counts by its attributes and its bases.
- What Python itself or an installed package defines counts by its name and the package's version.
- A value that cannot be compared with one of another process is refused, such as an open file, a
  variable or a lock. So is a function that reads files or evaluates text.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import os
import struct
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class UnkeyableError(Exception):
    """A value has no fingerprint; the message says which part of it, and why."""


def fingerprint(value: Any, name: str) -> str:
    """40 hexadecimal digits that two processes compute of equal values, and of no others.

    Args:
        value: anything.
        name: what an error calls it, such as "map".

    Raises:
        UnkeyableError: a part of it can change without a trace, or cannot be looked into.
    """
    hasher = _Hasher((name,))
    try:
        hasher.visit(value)
    except RecursionError:
        raise UnkeyableError(f"{name} is nested too deeply") from None
    return hasher.hexdigest()


def content_digest(content: Any) -> bytes:
    """SHA-256 of bytes; of each 64 MiB on a thread of its own."""
    view = memoryview(content)
    if len(view) <= _CHUNK:
        return hashlib.sha256(view).digest()
    chunks = [view[first : first + _CHUNK] for first in range(0, len(view), _CHUNK)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        parts = pool.map(lambda chunk: hashlib.sha256(chunk).digest(), chunks)
        return hashlib.sha256(b"".join(parts)).digest()


_CHUNK = 64 << 20
_DIGITS = 40


class _Hasher:
    """Walks a value and hashes what it finds; every part says what it is and how long it is."""

    def __init__(self, path: tuple[str, ...], above: frozenset[int] = frozenset()) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no id is given to another object
        self._open: list[int] = []
        self._above = above
        self._path = path

    def hexdigest(self) -> str:
        return self._hash.hexdigest()[:_DIGITS]

    def visit(self, value: Any) -> None:
        """Add a value."""
        atom = _ATOMS.get(type(value))
        if atom is not None:
            self._feed(type(value).__name__, atom(value))
        elif type(value) is tuple:  # constants of code: equal ones may be one object, or several
            self._feed("tuple", _count(value))
            self._numbered(value)
        elif isinstance(value, types.ModuleType):
            self._reached(value, (), may_read=False)
        elif _is_library_name(value):
            self._library_name(value)
        else:
            self._visit_once(value)

    def _visit_once(self, value: Any) -> None:
        """Add a value that may be met again, also inside of itself."""
        if id(value) in self._above:
            raise self._refusal("is inside a set that it holds")
        known = self._seen.get(id(value))
        if known is not None:
            self._feed("again", str(known).encode())
            return
        found = (method for kinds, method in _METHODS if isinstance(value, kinds))
        method = _EXACT.get(type(value)) or next(found, _Hasher.visit_object)
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        self._open.append(id(value))
        method(self, value)
        self._open.pop()

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        """Errors name the path to the value that is refused."""
        before, self._path = self._path, (*self._path, name)
        yield
        self._path = before

    def _refusal(self, why: str) -> UnkeyableError:
        return UnkeyableError(f"{', '.join(self._path)} {why}")

    def _feed(self, kind: str, *contents: bytes) -> None:
        for content in (kind.encode(), *contents):
            self._hash.update(len(content).to_bytes(8, "big"))
            self._hash.update(content)

    def _part(self, name: str, value: Any) -> None:
        with self._inside(name):
            self.visit(value)

    # Containers and arrays.

    def _numbered(self, values: Any) -> None:
        for number, one in enumerate(values):
            self._part(f"item {number}", one)

    def _items(self, items: Any) -> None:
        for key, one in items:
            self._part(f"key {key!r:.40}", key)
            self._part(f"item {key!r:.40}", one)

    def visit_proxy(self, value: types.MappingProxyType[Any, Any]) -> None:
        self._feed("mappingproxy", _count(value))
        self._items(value.items())

    def _set(self, kind: str, members: Any) -> None:
        """In the order of the members' fingerprints: their own differs between processes."""
        found = []
        for one in members:
            apart = _Hasher((*self._path, "a member"), self._above.union(self._open))
            apart.visit(one)
            found.append(apart.hexdigest())
        self._feed(kind, "".join(sorted(found)).encode())

    def visit_container(self, value: Any) -> None:
        """The items of a list, a dict or a set, or of a class that extends one."""
        if isinstance(value, list):
            self._feed("list", _count(value))
            self._numbered(list.__iter__(value))
        elif isinstance(value, dict):
            self._feed("dict", _count(value))
            self._items(dict.items(value))
        elif isinstance(value, set):
            self._set("set", set.__iter__(value))
        elif isinstance(value, frozenset):
            self._set("frozenset", frozenset.__iter__(value))

    def visit_array(self, value: np.ndarray) -> None:
        described = repr((value.dtype.name, value.dtype.descr, value.shape))
        self._feed("array", described.encode())
        plain = np.asarray(value)
        if value.dtype.hasobject:
            self._object_array(plain)
        else:
            whole = np.ascontiguousarray(plain).reshape(-1)
            self._feed("bytes", content_digest(whole.view(np.uint8) if whole.nbytes else b""))
        if type(value) not in (np.ndarray, np.memmap):
            self._part("its class", type(value))
            self._attributes(vars(value) if hasattr(value, "__dict__") else {})

    def _object_array(self, value: np.ndarray) -> None:
        items = value.ravel().tolist()
        if all(type(one) is bytes for one in items):  # text, as TensorFlow has it
            lengths = np.array([len(one) for one in items], np.int64)
            self._feed("strings", content_digest(lengths.tobytes() + b"".join(items)))
        else:
            self._feed("objects", _count(items))
            self._numbered(items)

    def visit_scalar(self, value: np.generic) -> None:
        self._feed("scalar")
        self.visit_array(np.asarray(value))

    def visit_tensor(self, value: Any) -> None:
        if not hasattr(value, "numpy") or value.dtype in (tf.resource, tf.variant):
            raise self._refusal("is a tensor whose value cannot be read")
        self._feed("tensor", value.dtype.name.encode())
        self.visit_array(np.asarray(value.numpy()))

    def visit_described(self, value: Any) -> None:
        self._feed(type(value).__name__, repr(value).encode())

    # Functions.

    def visit_function(self, value: types.FunctionType) -> None:
        self._feed("function")
        code = value.__code__
        with self._inside(f"function {value.__name__!r}"):
            self.visit(code)
            self._part("its defaults", value.__defaults__)
            self._part("its defaults", value.__kwdefaults__)
            cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
            closure = {name: _content(cell) for name, cell in cells}
            for name, one in closure.items():
                if not isinstance(one, types.ModuleType):  # that counts by what is used of it
                    self._part(f"closure value {name!r}", one)
            if _is_library_file(code.co_filename):
                self._feed("of", _version(str(value.__module__)).encode())
            else:
                self._attributes(vars(value))
                self._uses(value, closure)

    def visit_code(self, value: types.CodeType) -> None:
        numbers = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        described = repr((numbers, value.co_flags, names)).encode()
        self._feed("code", value.co_code, value.co_exceptiontable, described)
        self.visit(value.co_consts)

    def _uses(self, function: types.FunctionType, closure: Mapping[str, Any]) -> None:
        """What the code names: globals, attributes of modules, imports."""
        may_read = function.__name__ == "__init__"  # it ran before; what it read is in the object
        found = {use for code in _nested(function.__code__) for use in _names(code)}
        for use in sorted(found):
            with self._inside(f"{use.kind} {use.name!r}"):
                if use.kind == "import":
                    module = self._imported(use.name, function.__globals__)
                    self._reached(module, use.attributes, may_read=may_read)
                elif use.kind == "closure value":
                    if isinstance(closure.get(use.name), types.ModuleType):
                        self._reached(closure[use.name], use.attributes, may_read=may_read)
                elif use.name in function.__globals__:
                    value = function.__globals__[use.name]
                    self._reached(value, use.attributes, may_read=may_read)
                else:
                    if not may_read:
                        self._assert_reads_nothing("builtins", use.name)
                    self._feed("builtin", bytes([hasattr(builtins, use.name)]))

    def _imported(self, name: str, names: Mapping[str, Any]) -> Any:
        try:
            package = names.get("__package__") or ""
            return importlib.import_module(importlib.util.resolve_name(name, package))
        except ImportError as error:
            raise self._refusal(f"cannot be imported: {error}") from None

    def _reached(self, value: Any, attributes: tuple[str, ...], *, may_read: bool) -> None:
        """A value; of a module what the code takes of it."""
        left = list(attributes)
        while isinstance(value, types.ModuleType):
            name = str(value.__name__)
            if _is_library(name):
                for attribute in left if not may_read else ():
                    self._assert_reads_nothing(name, attribute)
                self._feed("module", name.encode(), _version(name).encode())
                self._feed("attributes", repr(left).encode())
                return
            if not left:
                raise self._refusal(
                    f"is the module {name} as a whole, which is too much to compare"
                )
            attribute = left.pop(0)
            if not hasattr(value, attribute):
                with suppress(ImportError):
                    importlib.import_module(f"{name}.{attribute}")
            value = getattr(value, attribute, None)
        self.visit(value)

    def _assert_reads_nothing(self, module: str, name: str) -> None:
        if name in _READERS:
            raise self._refusal(
                f"uses {module}.{name}, which reads what can change while the code stays the same"
            )

    def _library_name(self, value: Any) -> None:
        module, name = value.__module__, _qualified(value)
        self._assert_reads_nothing(module, name.rpartition(".")[2])
        self._feed("library", module.encode(), name.encode(), _version(module).encode())

    def visit_method(self, value: types.MethodType) -> None:
        self._feed("method")
        self.visit(value.__func__)
        self._part("the object that it is bound to", value.__self__)

    def visit_builtin(self, value: Any) -> None:
        """A function in C without a module: one of a class, or bound to an object."""
        self._feed("builtin", value.__name__.encode())
        owner = getattr(value, "__objclass__", None)
        self.visit(getattr(value, "__self__", None) if owner is None else owner)

    def visit_wrapping(self, value: Any) -> None:
        self._feed(type(value).__name__)
        for name in _WRAPPED:
            self._part(name, getattr(value, name, None))

    def visit_cell(self, value: types.CellType) -> None:
        self._feed("cell")
        self.visit(_content(value))

    # Classes and objects.

    def visit_class(self, value: type) -> None:
        with self._inside(f"class {value.__name__!r}"):
            self._feed("class", value.__qualname__.encode())
            self._part("its metaclass", type(value))
            self._part("its bases", value.__bases__)
            own = {name: one for name, one in vars(value).items() if name not in _NOT_OF_A_CLASS}
            slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
            self._attributes({k: one for k, one in own.items() if not isinstance(one, slots)})

    def visit_object(self, value: Any) -> None:
        of_keras = {base.__module__.partition(".")[0] for base in type(value).__mro__} & _KERAS
        if of_keras or isinstance(value, (tf.Variable, tf.Module)):
            raise self._refusal(f"is a {type(value).__name__}, whose values change")
        if _is_library_name(type(value)) or not _is_of_python(type(value)):
            self._by_pickle(value)
            return
        self._feed("object")
        self._part("its class", type(value))
        state = object.__getstate__(value)  # not the class's own, which may leave things out
        for attributes in state if isinstance(state, tuple) else (state,):
            self._attributes(attributes or {})
        self.visit_container(value)
        for base, plain in _VALUES.items():
            if isinstance(value, base):
                self.visit(plain(value))

    def _attributes(self, found: Mapping[str, Any]) -> None:
        self._feed("attributes", _count(found))
        for name in sorted(found):
            self._feed("name", name.encode())
            self._part(f"attribute {name!r}", found[name])

    def _by_pickle(self, value: Any) -> None:
        """An object of a library's class: what pickle would store of it."""
        kind = type(value)
        reduce = copyreg.dispatch_table.get(kind)
        try:
            found = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:  # the library's own, of any kind
            raise self._refusal(
                f"is a {kind.__name__}, which cannot be compared: {error}"
            ) from None
        self._feed("pickled")
        self._part("its class", kind)
        if isinstance(found, str):
            self._feed("name", str(getattr(value, "__module__", "")).encode(), found.encode())
            return
        function, arguments, state, items, pairs, setter = (*found, *[None] * 4)[:6]
        with self._inside(f"a {kind.__name__}"):
            for one in (function, arguments, state, setter):
                self.visit(one)
            for several in (items, pairs):
                self.visit(None if several is None else tuple(several))


class _Use(NamedTuple):
    """A name that code uses, and what it takes of it by attributes."""

    kind: str
    name: str
    attributes: tuple[str, ...]


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of functions and classes inside of it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _nested(one)


def _names(code: types.CodeType) -> Iterator[_Use]:
    """What code uses from outside."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for number, step in enumerate(steps):
        later = itertools.islice(steps, number + 1, None)
        if step.opname in _LOADS and step.argval != "__name__":
            taken = _arguments(later, ("LOAD_ATTR", "LOAD_METHOD"), ())
            yield _Use(_LOADS[step.opname], step.argval, taken)
        elif step.opname == "IMPORT_NAME":
            name = "." * steps[number - 2].argval + step.argval
            taken = _arguments(later, ("IMPORT_FROM",), ("STORE", "SWAP", "POP_TOP"))
            if not taken:
                yield _Use("import", name, ())
            for one in taken:
                yield _Use("import", name, (one,))


def _arguments(
    later: Iterator[dis.Instruction], names: tuple[str, ...], between: tuple[str, ...]
) -> tuple[str, ...]:
    """The arguments of the instructions of these names that come next."""
    known = itertools.takewhile(lambda one: one.opname.startswith((*names, *between)), later)
    return tuple(one.argval for one in known if one.opname.startswith(names))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return NotImplemented


def _count(value: Any) -> bytes:
    return str(len(value)).encode()


# Which names belong to Python and to installed packages, and of which version these are.


def _is_library_name(value: Any) -> bool:
    """Whether a class or function is what its name says in a library."""
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or not _is_library(module):
        return False
    if isinstance(value, type) and (module == "builtins" or _is_in_c(value)):
        return True
    if isinstance(value, types.FunctionType) and not _is_library_file(value.__code__.co_filename):
        return False
    found: Any = sys.modules.get(module)
    for name in _qualified(value).split("."):
        found = getattr(found, name, None)
    return found is value


def _qualified(value: Any) -> str:
    return str(getattr(value, "__qualname__", value.__name__))


def _is_in_c(kind: type) -> bool:
    in_c = (types.WrapperDescriptorType, types.MethodDescriptorType)
    return any(isinstance(one, in_c) and one.__objclass__ is kind for one in vars(kind).values())


def _is_of_python(kind: type) -> bool:
    """Whether the attributes of an object are all that it holds, or it extends a plain value."""
    return not any(_is_in_c(base) for base in kind.__mro__ if base not in _PLAIN)


@functools.cache
def _is_library(module: str) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    top = module.partition(".")[0]
    found = sys.modules.get(module) or sys.modules.get(top)
    files = [getattr(found, "__file__", None) or "", *getattr(found, "__path__", ())]
    if not any(files):
        return top in sys.stdlib_module_names
    return _is_library_file(next(filter(None, files)))


@functools.cache
def _is_library_file(file: str) -> bool:
    if file.startswith("<frozen "):
        return True
    path = Path(file)
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(path.is_relative_to(home) for home in _HOMES)


@functools.cache
def _version(module: str) -> str:
    """The version of the package that a module belongs to."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"Python {sys.version}"
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    packages = importlib.metadata.packages_distributions().get(top, ())
    found = sorted((name, importlib.metadata.version(name)) for name in set(packages))
    file = getattr(sys.modules.get(module), "__file__", None)
    if not found and file is not None:  # copied by hand
        found = [(file, str(os.stat(file).st_mtime_ns))]
    return repr(found)


_HOMES = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platstdlib"),
    str(Path(__file__).parents[1]),
)
_KERAS = {"keras", "tf_keras"}

_READERS = frozenset({
    "__import__", "environ", "eval", "exec", "FixedLengthRecordDataset", "fromfile", "genfromtxt",
    "getenv", "GFile", "glob", "globals", "import_module", "imread", "input", "listdir", "load",
    "load_img", "loadtxt", "memmap", "open", "read_csv", "read_file", "read_parquet", "read_table",
    "scandir", "TextLineDataset", "TFRecordDataset", "urlopen", "urlretrieve",
})  # fmt: skip
"""Functions of libraries whose result does not follow from code and arguments."""

_LOADS = {
    "LOAD_CLASSDEREF": "closure value",
    "LOAD_DEREF": "closure value",
    "LOAD_FROM_DICT_OR_DEREF": "closure value",
    "LOAD_FROM_DICT_OR_GLOBALS": "global",
    "LOAD_GLOBAL": "global",
    "LOAD_NAME": "global",
}

_NOT_OF_A_CLASS = frozenset({
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__",
    "__annotations_cache__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__",
    "__firstlineno__", "__match_args__", "__module__", "__orig_bases__", "__parameters__",
    "__qualname__", "__slotnames__", "__static_attributes__", "__type_params__", "__weakref__",
    "_abc_impl",
})  # fmt: skip
"""What Python writes into a class, or what follows from the rest of it."""

_VALUES: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: bytes.__bytes__,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    tuple: lambda value: tuple(tuple.__iter__(value)),
}
"""What an object holds of the plain value that its class extends."""

_PLAIN = (object, list, dict, set, frozenset, *_VALUES)

_ATOMS: dict[type, Callable[[Any], bytes]] = {
    bool: lambda value: bytes([value]),
    bytes: lambda value: value,
    complex: lambda value: struct.pack(">dd", value.real, value.imag),
    float: lambda value: struct.pack(">d", value),
    int: lambda value: hex(value).encode(),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    type(...): lambda _: b"",
    type(None): lambda _: b"",
    type(NotImplemented): lambda _: b"",
}

_Method = Callable[[_Hasher, Any], None]
_EXACT: dict[type, _Method] = dict.fromkeys((list, dict, set, frozenset), _Hasher.visit_container)
_METHODS: tuple[tuple[Any, _Method], ...] = (
    (types.FunctionType, _Hasher.visit_function),
    (types.CodeType, _Hasher.visit_code),
    (types.MethodType, _Hasher.visit_method),
    (
        (
            types.BuiltinFunctionType,
            types.ClassMethodDescriptorType,
            types.MethodDescriptorType,
            types.MethodWrapperType,
            types.WrapperDescriptorType,
        ),
        _Hasher.visit_builtin,
    ),
    (
        (
            classmethod,
            staticmethod,
            property,
            functools.cached_property,
            type(functools.lru_cache(lambda: None)),
            tf.types.experimental.GenericFunction,
        ),
        _Hasher.visit_wrapping,
    ),
    (types.CellType, _Hasher.visit_cell),
    (types.MappingProxyType, _Hasher.visit_proxy),
    (type, _Hasher.visit_class),
    (np.ndarray, _Hasher.visit_array),
    (np.generic, _Hasher.visit_scalar),
    (tf.Tensor, _Hasher.visit_tensor),
    ((np.dtype, tf.DType, tf.TensorShape, tf.TypeSpec), _Hasher.visit_described),
)
_WRAPPED = ("__func__", "__wrapped__", "func", "fget", "fset", "fdel", "python_function")
