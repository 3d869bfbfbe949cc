"""What the package exports, and what importing it costs."""

import inspect
import subprocess
import sys

import pytest

import phalanx
from phalanx import errors

PUBLIC = {
    "__version__", "all_gather", "all_gather_batch", "all_reduce", "barrier", "broadcast",
    "disable", "distribute_optimizer", "distribute_step", "enable", "evaluate", "fit", "is_chief",
    "is_enabled", "launch", "local_chief_first", "local_rank", "observe_gradients", "predict",
    "rank", "strategy", "sum_loss", "world_size", "callbacks", "checkpoint", "clip", "data",
    "preemption", "schedules",
}  # fmt: skip


def test_the_exported_names():
    """Whoever changes this set changes what users may rely on: CHANGELOG."""
    assert set(phalanx.__all__) == PUBLIC
    assert set(dir(phalanx)) == PUBLIC
    assert len(phalanx.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_an_exported_name_is_there_and_documented(name):
    value = getattr(phalanx, name)
    if name != "__version__":
        assert value.__name__.removeprefix("phalanx.") == name
        assert inspect.getdoc(value)


def test_a_name_that_is_not_exported_is_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'fti'"):
        phalanx.fti  # noqa: B018


def test_a_callback_is_found_by_the_message_of_its_package():
    with pytest.raises(AttributeError, match=r"phalanx\.callbacks"):
        phalanx.Checkpoint  # noqa: B018 - reading it is the test


def test_star_import_gives_the_exported_names():
    scope = {}
    exec("from phalanx import *", scope)
    assert set(phalanx.__all__) <= set(scope)


@pytest.mark.process
@pytest.mark.parametrize(
    "module", ["phalanx", "phalanx.testing", "phalanx.testing.chaos", "phalanx.cli"]
)
def test_importing_imports_neither_tensorflow_nor_keras(module):
    program = f"import sys, {module}; print(sorted({{'tensorflow', 'keras'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def drawn_tree():
    """(name, its parent, other bases) for each line of the drawing in errors' docstring."""
    found, above = [], {}
    for line in errors.__doc__.splitlines():
        stripped = line.lstrip(" │├└─")
        if "Error" not in stripped.split(" ")[0]:
            continue
        depth = len(line) - len(stripped)
        name, _, rest = stripped.partition(" ")
        bases = rest[1 : rest.index(")")].split(", ") if rest.startswith("(") else []
        above[depth] = name
        parents = [above[d] for d in sorted(above) if d < depth]
        above = {d: n for d, n in above.items() if d <= depth}
        found.append((name, parents[-1] if parents else "Exception", bases))
    return found


def test_the_drawing_of_the_errors_is_the_tree():
    classes = [
        (name, *[base.__name__ for base in cls.__bases__])
        for name, cls in vars(errors).items()
        if inspect.isclass(cls)
    ]
    assert sorted((name, parent, *bases) for name, parent, bases in drawn_tree()) == sorted(classes)


def test_every_error_is_a_phalanx_error_and_documented():
    for name, cls in vars(errors).items():
        if inspect.isclass(cls):
            assert issubclass(cls, errors.PhalanxError), name
            assert cls.__doc__, name
