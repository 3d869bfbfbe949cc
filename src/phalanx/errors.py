"""Every exception that Phalanx raises on purpose, in one small tree.

    PhalanxError
    ├── ConfigurationError (ValueError)    an option or argument that cannot work
    │   └── StartedError (RuntimeError)     a setting comes after TensorFlow has started
    ├── ClusterError                who is in the cluster, and who am I: contradictory or incomplete
    ├── LaunchError                 a worker could not be started
    │   ├── ScriptError             the user's script cannot be run at all
    │   └── UnavailableError        a host, run or directory is not available now
    ├── WorkerFailedError           a worker ended badly; names the root cause
    │   └── RunFailedError          a run that `phalanx.launch` started
    ├── ReturnValueError            a value cannot come back from the workers of `phalanx.launch`
    ├── TrainingError               fit, evaluate or predict cannot give the right answer
    │   ├── DataError               the input data is invalid, or differs between workers
    │   │   └── NoSamplesError          a file has no sample
    │   ├── NonFiniteError          a gradient has NaN or infinite entries
    │   ├── WorkerMismatchError       workers were asked to do different things
    │   └── WorkerLostError           a worker that the others need has ended
    ├── CheckpointError             a checkpoint cannot be written, found, read or used
    │   ├── CheckpointNotFoundError       there is none
    │   ├── CheckpointCorruptedError  its bytes are not those that were written
    │   ├── CheckpointVersionError    a newer Phalanx wrote it
    │   └── CheckpointMismatchError   it is of another model or other data
    ├── TrackerError                an experiment tracker cannot take a run
    ├── LeaseLostError              another process has taken over a run or a checkpoint directory
    └── IncompatibleDependencyError        a private Keras or TensorFlow name is not what it was

Each message says what was asked, what was found (the value), and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_UNAVAILABLE = 69
"""EX_UNAVAILABLE of sysexits.h. 75, EX_TEMPFAIL, says that a run saved and stopped."""


class PhalanxError(Exception):
    """Base of every error that Phalanx raises on purpose.

    Attributes:
        exit_code: of the command that it ends. 2: the same command fails again. 69: it may work
            later. Clusters restart a launcher, or do not, by this code.
    """

    exit_code: int = 2


class ConfigurationError(PhalanxError, ValueError):
    """An option or argument that cannot work; raised before any work starts."""


class StartedError(ConfigurationError, RuntimeError):
    """A script asks for other devices after TensorFlow has started.

    It is a `RuntimeError` as TensorFlow's own is, which scripts catch.
    """


class ClusterError(PhalanxError):
    """The description of the cluster contradicts itself or lacks something."""


class LaunchError(PhalanxError):
    """A worker process could not be started; `ranks` says which, where it is known."""

    ranks: Sequence[int] = ()


class ScriptError(LaunchError):
    """The user's script is missing, unreadable or not valid Python."""


class UnavailableError(LaunchError):
    """A host, a launcher, a run or a directory is not available now; it may be later.

    Another process uses the directory of a run or of checkpoints, or a host does not answer.
    """

    exit_code = _UNAVAILABLE


class WorkerFailedError(PhalanxError):
    """A worker ended badly. The message names the earliest failure: the root cause."""


class RunFailedError(WorkerFailedError):
    """A run that `phalanx.launch` or `%%phalanx` started has failed.

    Attributes:
        exit_code: that of the run, as `phalanx run` ends with it.
        run_dir: the run's directory; None where the launcher ended before there was one.
        rank: the worker of the root cause; None where no worker failed.
        type: the class name of its exception; empty where it raised none.
        file: the cell or file of the user's code that raised it, such as `Cell In[3]`; None where
            that is unknown.
        line: the line in it, from 1.
        traceback: the worker's traceback, from the user's code on; empty where there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int,
        run_dir: Path | None = None,
        rank: int | None = None,
        type: str = "",
        file: str | None = None,
        line: int | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.run_dir = run_dir
        self.rank = rank
        self.type = type
        self.file = file
        self.line = line
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the worker's traceback is in the message, the kernel's says nothing.

        https://ipython.readthedocs.io/en/stable/config/integrating.html
        """
        return [f"{type(self).__name__}: {self}"]


class ReturnValueError(PhalanxError):
    """What the function of `phalanx.launch` returned cannot come back; the run itself is done."""


class TrainingError(PhalanxError):
    """`fit`, `evaluate` or `predict` cannot give the right answer."""


class DataError(TrainingError):
    """The input data is invalid, or differs between workers."""


class NoSamplesError(DataError):
    """A source has no sample: an empty file, or a table with a header alone."""


class NonFiniteError(TrainingError):
    """A total gradient has NaN or infinite entries; names variable, step and workers."""


class WorkerMismatchError(TrainingError):
    """Workers were asked to do different things; continuing would hang or be wrong."""


class WorkerLostError(TrainingError):
    """A worker that the others need has ended; its own failure, if there is one, came first."""


class CheckpointError(PhalanxError):
    """A checkpoint cannot be written, found, read or used."""


class CheckpointNotFoundError(CheckpointError):
    """There is no such checkpoint, or none at all."""


class CheckpointCorruptedError(CheckpointError):
    """The bytes of a checkpoint are not those that were written."""


class CheckpointVersionError(CheckpointError):
    """A newer Phalanx wrote the checkpoint, in a format that this one does not know."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint is of another model, or of a training on other data."""


class TrackerError(PhalanxError):
    """An experiment tracker cannot take a run, or another process sends it."""


class LeaseLostError(PhalanxError):
    """Another process has taken over a run or a checkpoint directory from this one."""

    exit_code = _UNAVAILABLE


class IncompatibleDependencyError(PhalanxError):
    """A private Keras or TensorFlow name that Phalanx relies on is not what it was."""
