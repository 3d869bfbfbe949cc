"""The checkpoints of a `fit`: the whole state of training, and the way back to it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from phalanx.callbacks.callback import Callback
from phalanx.callbacks.fit_protocols import at_most_one
from phalanx.callbacks.triggers import Trigger, every_n_epochs
from phalanx.checkpoint.retention import Mode, Retention
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import PEER_TIMEOUT
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import ConfigurationError

OnFailure = Literal["warn", "raise"]
Data = Literal["iterator", "skip"]
Resume = Literal[True, False, "restart"]


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """What was asked of `Checkpoint`; see there.

    Attributes:
        directory: None for `checkpoints` in the run's directory.
        every: when.
        retention: which checkpoints stay.
        async_save: whether writing continues in parallel to training.
        retry_policy: how often to try again.
        peer_timeout: seconds that worker 0 waits for the shares of the others, after the last came.
        resume: whether to resume from the newest; "restart": and to train from the beginning where
            all are damaged.
        on_failure: what a checkpoint that could not be written does.
        data: how the place in a `tf.data` pipeline is found again.
        allow_data_change: whether to resume with other data, after as many samples.
        storage: options for fsspec's file system.
    """

    directory: str | None
    every: Trigger
    retention: Retention
    async_save: bool
    retry_policy: RetryPolicy
    peer_timeout: float
    resume: Resume
    on_failure: OnFailure
    data: Data
    allow_data_change: bool = False
    storage: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, environment: Mapping[str, str]) -> StorageDir:
        """Where the checkpoints are: of a run that keeps nothing, in its directory.

        Raises:
            ConfigurationError: no directory was given, and no launcher has one; or nothing here
                reaches such a URL.
        """
        spec = WorkerSpec.from_environment(environment)
        if spec is not None and spec.run_dir is not None and spec.switches.trial_batches:
            own = re.sub(r"\W+", "-", self.directory or "")
            return StorageDir.at(os.path.join(spec.run_dir, "checkpoints", own))
        if self.directory is not None:
            return StorageDir.at(self.directory, **self.storage)
        if spec is None or spec.run_dir is None:
            raise ConfigurationError(
                "Checkpoint needs a directory where no `phalanx run` has one; found None. Give "
                'one: Checkpoint("checkpoints").'
            )
        return StorageDir.at(os.path.join(spec.run_dir, "checkpoints"))


class Checkpoint(Callback):
    """Saves everything that a training needs to continue as if nothing had happened.

    Model, optimizer (slots, iterations, loss scale, averages), metrics in the middle of an
    epoch, seeds and generators, the place in the data, what callbacks remember, history. A
    script that is restarted with the same directory resumes where the newest complete
    checkpoint was taken, on as many workers as there are then.

    Training stops for the copy to host memory only; all workers then write a share each
    while it continues, at most one checkpoint at a time. It is there when it is complete.

    Args:
        directory: a path or a URL of fsspec's (`s3://bucket/run`), the same on every worker;
            None for `checkpoints` in the directory of `phalanx run`. One for each training.
        every: `every_n_seconds(300)`, `every_n_steps(1000)` or `every_n_epochs()`. One more is
            taken where training ends.
        max_to_keep: how many of those that were saved last stay.
        best: a metric of the epoch logs and "min" or "max": ("val_loss", "min"). Its
            best epoch is saved and stays too.
        async_save: False to wait for each checkpoint to be on disk.
        max_retries: how often a write that storage refuses is tried again, after waits of 0.5 s,
            1 s, 2 s ... and some chance.
        peer_timeout: seconds that worker 0 waits for the shares of the other workers; each share
            that comes starts the time again. A checkpoint that misses one counts as failed.
        resume: False to refuse a directory that has checkpoints. Training stops where all are
            damaged; "restart" trains from the beginning then.
        on_failure: "warn" to continue training without a checkpoint that could not be written,
            unless the first three of a `fit` all fail; "raise" to end at the first.
        data: how the place within a pass over a `tf.data` pipeline is found again: "iterator"
            saves what the pipeline holds (shuffle buffers too), "skip" reads the data again
            up to there. Arrays need neither.
        allow_data_change: True to resume with another batch size, data set or order: training
            continues after as many samples of the pass as were trained. Otherwise it stops.
        storage_options: for fsspec's file system: keys, endpoint.

    Raises:
        ConfigurationError: an argument is none of these.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        every: Trigger | None = None,
        max_to_keep: int = 3,
        best: tuple[str, Mode] | None = None,
        async_save: bool = True,
        max_retries: int = 5,
        peer_timeout: float = PEER_TIMEOUT,
        resume: Resume = True,
        on_failure: OnFailure = "warn",
        data: Data = "iterator",
        allow_data_change: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if every is not None and not isinstance(every, Trigger):
            raise ConfigurationError(
                "every must be every_n_seconds(...), every_n_steps(...) or every_n_epochs(...) of "
                f"phalanx.callbacks; found {every!r}."
            )
        for name, value, known in (
            ("on_failure", on_failure, get_args(OnFailure)),
            ("data", data, get_args(Data)),
            ("resume", resume, get_args(Resume)),
        ):
            if value not in known:
                wanted = " or ".join(map(repr, known))
                raise ConfigurationError(f"Checkpoint takes {name}={wanted}; found {value!r}.")
        if not peer_timeout > 0:
            raise ConfigurationError(
                f"Checkpoint needs a peer_timeout above 0 seconds; found {peer_timeout!r}."
            )
        self.options = CheckpointOptions(
            directory=None if directory is None else os.fspath(directory),
            every=every or every_n_epochs(),
            retention=Retention(max_to_keep=max_to_keep, best=best),
            async_save=async_save,
            retry_policy=RetryPolicy(max_retries=max_retries),
            peer_timeout=peer_timeout,
            resume=resume,
            on_failure=on_failure,
            data=data,
            allow_data_change=allow_data_change,
            storage=dict(storage_options or {}),
        )
        self.is_driven = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a `fit` that would save nothing."""
        if not self.is_driven:
            raise ConfigurationError(
                "Checkpoint was given to Keras's own fit, which has no place for it; nothing "
                "would be saved. Call phalanx.enable() first, use phalanx.fit, or start the "
                "script by `phalanx run`."
            )


def find_checkpoint(callbacks: Iterable[Any]) -> Checkpoint | None:
    """The `Checkpoint` among a fit's callbacks, if there is one.

    Raises:
        ConfigurationError: there are several.
    """
    found = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    return at_most_one(found, advice="Give one Checkpoint all that you want (every, best).")
