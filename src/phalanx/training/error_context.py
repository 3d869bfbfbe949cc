"""What an error in a step says: which worker, which replica, which step, and what was wrong.

An assertion that fails in a graph comes back in a message of many lines whose first is "Graph
execution error:", and names the replica in its nodes alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import PhalanxError
from phalanx.launcher.failure import gist
from phalanx.worker.error_context import ErrorContext, InReplica, error_context_of, take_replica

_NODE_OF_REPLICA = re.compile(r"\breplica_(\d+)/")

_OF_SHAPES = re.compile(r"shape|dimension|rank|axis|split|unpack", re.IGNORECASE)

_WORDS = {"train": "in step {next}", "test": "in validation after step {last}"}


@contextmanager
def annotate_errors(kind: str, topology: ReplicaTopology, trained: int | None) -> Iterator[None]:
    """Let an error that a step raises say where it was raised.

    Args:
        kind: what the step does: "train", "test" or "predict".
        topology: the replicas of this process.
        trained: how many steps are trained.
    """
    try:
        yield
    except (StopIteration, PhalanxError):
        raise
    except Exception as error:
        if error_context_of(error) is None:
            error.add_note(ErrorContext(_words(error, kind, topology, trained or 0)))
        if isinstance(error, tf.errors.InvalidArgumentError):
            _explain_axis_0(error, topology.total)
        raise


@contextmanager
def replica_scope(replica: int) -> Iterator[None]:
    """Let an error that is raised in a replica's step, or where it is traced, say so."""
    try:
        yield
    except PhalanxError:
        raise
    except Exception as error:
        error.add_note(InReplica(replica))
        raise


@contextmanager
def axis_0_explained(data: Any, replicas: int) -> Iterator[None]:
    """Let an error about shapes, raised while the step on `data` is traced, say what was cut."""
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        shapes = [str(tuple(v.shape)) for v in tf.nest.flatten(data) if v is not None]
        _explain_axis_0(error, replicas, f", and this one has the shapes {', '.join(shapes)}")
        raise


def _explain_axis_0(error: Exception, replicas: int, shapes: str = "") -> None:
    """Say what is cut, unless the error is not about shapes or has been explained."""
    begin = "Phalanx: each of the"
    explained = any(note.startswith(begin) for note in getattr(error, "__notes__", ()))
    if replicas > 1 and not explained and _OF_SHAPES.search(str(error)):
        error.add_note(
            f"{begin} {replicas} replicas is given its rows of the batch: axis 0 of every tensor "
            f"is cut{shapes}. Where axis 0 is something else, such as the two images of a pair, "
            "move it behind the batch (tf.transpose) and back in the model or train_step. Where "
            "the script names the size of the batch, take tf.shape(x)[0] instead; `phalanx check` "
            "on the script names such lines."
        )


def _words(error: Exception, kind: str, topology: ReplicaTopology, trained: int) -> str:
    when = _WORDS.get(kind, "in predict").format(last=trained, next=trained + 1)
    return f"worker {topology.rank}{_replica(error, topology)}, {when}: {gist(str(error))}"


def _replica(error: Exception, topology: ReplicaTopology) -> str:
    raised_in = take_replica(error)
    if topology.total == 1:
        return ""
    if topology.local == 1 or raised_in is not None:
        return f", replica {topology.first if raised_in is None else raised_in}"
    if (found := _NODE_OF_REPLICA.search(str(error))) is not None:
        return f", replica {topology.first + int(found[1])}"
    return ""
