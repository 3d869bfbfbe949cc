"""A script's own strategy gives way to the launcher's; the one home of private names here.

Private names of TensorFlow in this file, each held by a canary test:

- `strategy.extended._cluster_resolver`: what `Strategy.cluster_resolver` reads. Only
  multi-worker strategies have one, but scripts written for those ask any for their task.
- `ParameterServerStrategy._cluster_resolver`: where it keeps its own instead.

Everything else is public: the classes in `tf.distribute`, and
`tf.compat.v1.reset_default_graph`, which `clear_session` of Keras 3 and of tf_keras call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from phalanx.errors import IncompatibleDependencyError

_log = logging.getLogger("phalanx")

_UNSET = object()


def adopt(strategy: Any) -> ExitStack:
    """Hand `strategy` to every script that makes a strategy of its own.

    The classes stay what they are, so `isinstance` and subclasses work on; only a call of
    one of them gives the launcher's object. Close the result to take it back.
    """
    undo = ExitStack()
    for cls in strategies_of_scripts():
        undo.callback(_give_instead(cls, strategy))
    # Python initialises what a class gives if it is one of its instances.
    undo.callback(_initialise_once(type(strategy), strategy))
    return undo


def strategies_of_scripts() -> set[type]:
    """The classes of TensorFlow's that give way: those a script may make and train under.

    TensorFlow's own under TensorFlow 1's names too: a second strategy next to the one in force ends
    in an error, and a second `MirroredStrategy` of that kind in a segmentation fault. A
    `TPUStrategy` is made only where there is a TPU.
    """
    now, before = tf.distribute, tf.compat.v1.distribute
    return {
        now.MultiWorkerMirroredStrategy,
        now.MirroredStrategy,
        now.OneDeviceStrategy,
        now.ParameterServerStrategy,
        now.experimental.MultiWorkerMirroredStrategy,
        now.experimental.CentralStorageStrategy,
        now.experimental.ParameterServerStrategy,
        before.MirroredStrategy,
        before.OneDeviceStrategy,
        before.experimental.MultiWorkerMirroredStrategy,
        before.experimental.CentralStorageStrategy,
        before.experimental.ParameterServerStrategy,
    }


def _initialise_once(cls: type, strategy: Any) -> Callable[[], None]:
    original = cls.__init__  # type: ignore[misc]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if self is not strategy:
            original(self, *args, **kwargs)

    return replace(cls, "__init__", __init__)


def survive_clear_session(strategy: Any) -> ExitStack:
    """Set `strategy` again whenever the default graph is reset, as `clear_session` does.

    TensorFlow keeps the strategy that is in force on the default graph, so resetting that
    would end distribution without a report.
    """
    undo = ExitStack()
    original = tf.compat.v1.reset_default_graph

    def reset_default_graph() -> None:
        original()
        tf.distribute.experimental_set_strategy(strategy)

    reset_default_graph.__doc__ = original.__doc__
    # The public name has several homes, and each Keras takes another.
    for module in _public_v1_modules():
        if getattr(module, "reset_default_graph", None) is original:
            undo.callback(replace(module, "reset_default_graph", reset_default_graph))
    return undo


def ensure_cluster_resolver(strategy: Any) -> None:
    """Let `strategy.cluster_resolver.task_type` and `task_id` be "worker" and 0, or its own.

    Raises:
        IncompatibleDependencyError: TensorFlow keeps the resolver elsewhere by now.
    """
    resolver = strategy.cluster_resolver
    if resolver is not None and resolver.task_type is not None:
        return
    # ParameterServerStrategy has one, but where it is not found.
    own = getattr(strategy, "_cluster_resolver", None) or _alone()
    strategy.extended._cluster_resolver = own
    if strategy.cluster_resolver is not own:
        raise IncompatibleDependencyError(
            "Strategy.cluster_resolver no longer reads extended._cluster_resolver "
            f"(TensorFlow {tf.__version__}). Please report this to Phalanx."
        )


def _alone() -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["localhost:0"]}), task_type="worker", task_id=0
    )


def complete_script_strategies() -> ExitStack:
    """Where the script's own strategies stay its own, give them a cluster resolver too."""
    undo = ExitStack()
    for cls in {tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.MirroredStrategy}:
        original = cls.__init__

        def __init__(  # noqa: N807
            self: Any, *args: Any, __original: Callable[..., None] = original, **kwargs: Any
        ) -> None:
            __original(self, *args, **kwargs)
            ensure_cluster_resolver(self)

        undo.callback(replace(cls, "__init__", __init__))
    return undo


def _give_instead(cls: type, strategy: Any) -> Callable[[], None]:
    """Make `cls(...)` return `strategy`; a subclass of the user's still makes its own."""

    def __new__(requested: type, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if requested is not cls:
            return object.__new__(requested)
        if args or kwargs:
            _log.info("phalanx run has made the strategy: %s's arguments are unused", cls.__name__)
        return strategy

    undo_new = replace(cls, "__new__", staticmethod(__new__))
    undo_init = _initialise_once(cls, strategy)

    def undo() -> None:
        undo_init()
        undo_new()

    return undo


def replace(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute; the result puts back what `owner` itself had."""
    before = vars(owner).get(name, _UNSET)
    setattr(owner, name, value)

    def undo() -> None:
        if before is not _UNSET:
            setattr(owner, name, before)
        elif name == "__new__":
            # Deleting it would leave a class that refuses its constructor's arguments.
            setattr(owner, name, staticmethod(lambda cls, *args, **kwargs: object.__new__(cls)))
        else:
            delattr(owner, name)

    return undo


def _public_v1_modules() -> list[Any]:
    roots = [tf, tf.compat.v2, tf.compat.v1]
    return [root.compat.v1 for root in roots] + [tf.compat.v1]
