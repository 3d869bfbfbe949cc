"""TensorFlow's profiler on some steps of a `fit`, as `phalanx run --profile` asks for it.

https://www.tensorflow.org/api_docs/python/tf/profiler/experimental
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import tensorflow as tf

from phalanx.cluster.debug_options import ProfiledSteps
from phalanx.cluster.spec import WorkerSpec
from phalanx.launcher.run_layout import profile_of
from phalanx.training.step_function import Outputs

_log = logging.getLogger(__name__)


class StepProfiler:
    """Starts and stops the profiler around the steps asked for, once in a process."""

    def __init__(self, requested: ProfiledSteps, run_dir: Path, rank: int) -> None:
        """Get ready to look at `requested` on the worker `rank`; every worker has one."""
        self._requested = requested
        self._file = profile_of(run_dir, requested.name, rank)
        self._aside = run_dir / "tensorboard" / f".profiling-{rank}"
        self._is_chosen = rank in requested.workers
        self._is_running = False

    def steps_until_boundary(self, trained: int) -> int | None:
        """How many steps the next execution may have; the same on every worker.

        So what is looked at begins and ends at the steps asked for.
        """
        if trained < self._requested.first - 1:
            return self._requested.first - 1 - trained
        return self._requested.last - trained if trained < self._requested.last else None

    @contextmanager
    def around(self, trained: int, steps: int) -> Iterator[None]:
        """Look at the execution in the block, if it is of the steps asked for.

        Args:
            trained: steps trained before.
            steps: how many the block trains.
        """
        if not self._is_chosen or not self._requested.first - 1 <= trained < self._requested.last:
            yield
            return
        if not self._is_running:
            self._start()
        # TensorBoard's pages find the steps by events of this name.
        with tf.profiler.experimental.Trace("train", step_num=trained + 1, _r=1):
            yield
        if trained + steps >= self._requested.last:
            self.stop()

    def wait_for(self, outputs: Outputs) -> None:
        """Let the devices finish a step that is looked at, so that all of it is seen."""
        if self._is_running:
            tf.nest.map_structure(lambda t: t.numpy() if tf.is_tensor(t) else t, outputs)

    def stop(self) -> None:
        """Write what was seen, if anything was."""
        if not self._is_running:
            return
        self._is_running = self._is_chosen = False
        tf.profiler.experimental.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        for seen in self._aside.glob("plugins/profile/*/*.xplane.pb"):
            seen.replace(self._file)
        shutil.rmtree(self._aside, ignore_errors=True)

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(str(self._aside))
            self._is_running = True
        except tf.errors.AlreadyExistsError:
            self._is_chosen = False
            _log.warning(
                "--profile takes no profile: another profiler is running, perhaps that of "
                "keras.callbacks.TensorBoard(profile_batch=...)"
            )


@cache
def make_profiler() -> StepProfiler | None:
    """This process's; None where its run asked for none."""
    spec = WorkerSpec.from_environment(os.environ)
    if spec is None or spec.run_dir is None or spec.switches.profile is None:
        return None
    return StepProfiler(spec.switches.profile, Path(spec.run_dir), spec.rank)
