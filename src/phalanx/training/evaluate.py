"""`evaluate`: metrics over every sample, exact on any number of replicas."""

from __future__ import annotations

import time
from typing import Any

from phalanx.callbacks.progress import EvaluationProgress, Progress
from phalanx.data.batches import BatchSource
from phalanx.errors import DataError
from phalanx.seam.models import assert_compiled, ordered_metrics
from phalanx.training.cadence import ReadingCadence
from phalanx.training.metrics import reader_of
from phalanx.training.prepare import (
    Stage,
    callback_list,
    make_function,
    make_stream,
    on_any_worker,
    on_stage,
    open_source,
)
from phalanx.training.step import Outputs


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """What `keras.Model.evaluate` does, right under every synchronous strategy.

    Args:
        model: a compiled Keras model.
        x: the global data, on every worker; each evaluates its share.
        y: targets, where `x` does not bring them.
        batch_size: samples of a global batch, for arrays.
        verbose: 0, 1, 2 or "auto"; only the chief prints.
        sample_weight: one weight a sample, for arrays.
        steps: batches to evaluate; all where None.
        callbacks: Keras callbacks, run on every worker.
        return_dict: whether to return {name: value}.

    Returns:
        The loss and metrics over all samples, equal on every worker.

    Raises:
        DisagreementError: workers were given different data or models.
        DataError: there was no batch to evaluate.
    """
    assert_compiled(model, "evaluate")
    with on_stage(model) as stage:
        options = {"sample_weight": sample_weight, "batch_size": batch_size, "steps": steps}
        source = open_source(stage, "evaluate", 0, x, y, **options)
        evaluation = Evaluation(stage, source, steps)
        listed = callback_list(
            stage,
            callbacks,
            verbose=verbose,
            epochs=1,
            steps=evaluation.steps,
            display=EvaluationProgress,
        )
        logs = evaluation.run(listed, shows_progress=bool(verbose))
    return logs if return_dict else ordered_metrics(model, logs)


class Evaluation:
    """Evaluates a model on one source, as often as asked."""

    def __init__(self, stage: Stage, source: BatchSource, steps: int | None) -> None:
        """Prepare; nothing runs yet."""
        self._stage = stage
        self._model = stage.model
        self._function = make_function(stage, "test", source)
        self._stream = make_stream(stage, source, steps)
        self._reader = reader_of(stage.model, self._function)

    @property
    def steps(self) -> int | None:
        """Batches in one evaluation, None while nobody can know."""
        return self._stream.steps

    def run(self, callbacks: Any, *, shows_progress: bool = False) -> dict[str, float]:
        """Evaluate once, from fresh metrics.

        Raises:
            DataError: there was no batch to evaluate.
        """
        model = self._model
        others = [c for c in callbacks.callbacks if not isinstance(c, Progress)]
        cadence = ReadingCadence(
            others,
            "test",
            shows_progress=shows_progress,
            clock=time.monotonic,
            on_any_worker=lambda *needs: on_any_worker(self._stage, needs),
        )
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        outputs: Outputs = ()
        logs: dict[str, float] = {}
        self._stream.start(0)  # each time the same samples, wherever the last one stopped
        for step, size, iterator in self._stream.epoch():
            callbacks.on_test_batch_begin(step)
            try:
                done, outputs = self._function.on_iterator(iterator, size)
            except StopIteration:
                self._stream.ran_out(steps_done=0)
                continue
            if done < size:
                self._stream.ran_out(steps_done=done)
            if cadence.is_due(step + done):
                logs, upcoming = self._reader.read(outputs, cadence.propose(step + done))
                cadence.agree(upcoming)
            callbacks.on_test_batch_end(step + done - 1, logs)
            if model.stop_evaluating:
                break
        if not outputs:
            raise DataError("Asked to evaluate, but the data gave no batch. Pass at least one.")
        logs, _ = self._reader.read(outputs)
        callbacks.on_test_end(logs)
        return logs
