"""`evaluate`: metrics over every sample, exact on any number of replicas."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import keras

from phalanx.callbacks.progress import EvaluationProgress
from phalanx.data.batches import BatchSource
from phalanx.errors import DataError
from phalanx.keras_compat.model_access import assert_compiled, has_own_evaluate, ordered_metrics
from phalanx.keras_compat.patches import Patches
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.callbacks import callback_list
from phalanx.training.context import (
    CallContext,
    call_context,
    gather_log_requirements,
    make_function,
    make_stream,
    open_source,
)
from phalanx.training.epoch_loop import BatchLoop
from phalanx.training.error_context import annotate_errors
from phalanx.training.metrics import reader_of, share_out
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.parameter_server.evaluate import ServerEvaluation, evaluation_on_servers
from phalanx.training.parameter_server.ps_context import ps_call_context, trains_on_servers
from phalanx.training.replica_local_state import LocalState
from phalanx.training.run_switches import steps_of_trial
from phalanx.training.step_function import Outputs


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
    *,
    _use_cached_eval_dataset: bool = False,
) -> Any:
    """What `keras.Model.evaluate` does, right under every synchronous strategy.

    Args:
        model: a compiled Keras model.
        x: the global data, on every worker; each evaluates its share.
        y: targets, where `x` does not contain them.
        batch_size: samples of a global batch, for arrays.
        verbose: 0, 1, 2 or "auto"; only the chief prints.
        sample_weight: one weight a sample, for arrays.
        steps: batches to evaluate; all where None.
        callbacks: Keras callbacks, run on every worker.
        return_dict: whether to return {name: value}.

    Returns:
        The loss and metrics over all samples, equal on every worker.

    Raises:
        WorkerMismatchError: workers were given different data or models.
        DataError: there was no batch to evaluate.
    """
    assert_compiled(model, "evaluate")
    options = {"sample_weight": sample_weight, "batch_size": batch_size, "steps": steps}
    on_servers = trains_on_servers(model)
    validation = _validations.get(model)
    of_fit = validation is not None and callbacks is validation.callbacks
    with ps_call_context(model) if on_servers else call_context(model) as stage:
        evaluation: Evaluation | ServerEvaluation
        if validation is not None and _use_cached_eval_dataset:
            evaluation = validation.evaluation  # of fit's own data, as in Keras
        elif on_servers:
            evaluation = evaluation_on_servers(stage, x, y, **options)
        else:
            source = open_source(stage, "evaluate", 0, x, y, **options)
            evaluation = Evaluation(stage, source, steps)
        if of_fit:
            listed = callbacks  # they are prepared for this worker
        else:
            listed = callback_list(
                stage,
                callbacks,
                verbose=verbose,
                epochs=1,
                steps=evaluation.steps,
                display=EvaluationProgress,
            )
        logs = evaluation.run(listed, shows_progress=bool(verbose) and not of_fit)
    return logs if return_dict else ordered_metrics(model, logs)


class Evaluation:
    """Evaluates a model on one source, as often as asked."""

    def __init__(self, stage: CallContext, source: BatchSource, steps: int | None) -> None:
        """Prepare; nothing runs yet."""
        self._stage = stage
        self._model = stage.model
        self._function = make_function(stage, "test", source)
        self._stream = make_stream(stage, source, steps_of_trial(steps, source.num_batches))
        self._reader = reader_of(stage.model, self._function)

    @property
    def steps(self) -> int | None:
        """Batches in one evaluation, None while unknown."""
        return self._stream.steps

    def run(self, callbacks: Any, *, shows_progress: bool = False) -> dict[str, float]:
        """Evaluate once, from fresh metrics.

        Raises:
            DataError: there was no batch to evaluate.
        """
        with phase_tracker.during("validation"):
            return self._run(callbacks, shows_progress)

    def _run(self, callbacks: Any, shows_progress: bool) -> dict[str, float]:
        model = self._model
        cadence = MetricsSchedule(
            callbacks.callbacks,
            "test",
            shows_progress=shows_progress,
            clock=time.monotonic,
            everyones=partial(gather_log_requirements, self._stage),
        )
        model.stop_evaluating = False
        callbacks.on_test_begin()
        share_out(model, self._stage.topology)  # some metrics are never reset
        model.reset_metrics()
        self._stream.start(0)  # each time the same samples, wherever the last one stopped

        def read(outputs: Outputs, steps_done: int) -> Mapping[str, float]:
            notes = (cadence.propose(steps_done), 0.0, 0.0, 0.0, 0.0)
            logs, (upcoming, *_) = self._reader.read(outputs, notes)
            cadence.agree(upcoming)
            return logs

        def begin(batch: int) -> None:
            phase_tracker.enter("validation")  # again: it continues
            callbacks.on_test_batch_begin(batch)

        def execute(iterator: Any, steps: int) -> tuple[int, Outputs]:
            share_out(model, self._stage.topology)  # a hook may have evaluated
            with annotate_errors("test", self._stage.topology, phase_tracker.beat().step):
                return self._function.on_iterator(iterator, steps)

        batches = BatchLoop(
            stream=self._stream,
            execute=execute,
            is_due=cadence.is_due,
            read=read,
            begin=begin,
            end=callbacks.on_test_batch_end,
            is_stopped=lambda: bool(model.stop_evaluating),
        )
        outputs = batches.run()
        if not outputs:
            raise DataError("Asked to evaluate, but the data gave no batch. Pass at least one.")
        LocalState.of(model, self._function).average()
        logs, _ = self._reader.read(outputs, is_last=True)
        logs = dict(sorted(logs.items()))  # as Keras's `pythonify_logs`
        callbacks.on_test_end(logs)
        return logs


class OwnValidation:
    """The validation of a `fit` by the `evaluate` that the model overrides, as Keras's `fit` does.

    Attributes:
        callbacks: those of the `fit`, while it validates.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        *,
        batch_size: int | None,
        steps: int | None,
        open_data: Callable[..., Evaluation | ServerEvaluation],
    ) -> None:
        """Prepare, with the arguments of `validation_of`.

        Nothing is opened yet, since the model may make other data of it.
        """
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        options = {"sample_weight": weight, "batch_size": batch_size, "steps": steps}
        self._model = model
        self._arguments = {"x": x, "y": y, **options}
        self._open = partial(open_data, x, y, **options)
        self.callbacks: Any = None

    @cached_property
    def evaluation(self) -> Evaluation | ServerEvaluation:
        """The one on the data as `fit` was given it."""
        return self._open()

    def run(self, callbacks: Any) -> dict[str, float]:
        """Validate once, from fresh metrics."""
        self.callbacks = callbacks
        _validations[self._model] = self
        try:
            with _ours, phase_tracker.during("validation"):
                logs: dict[str, float] = self._model.evaluate(
                    **self._arguments,
                    callbacks=callbacks,
                    return_dict=True,
                    _use_cached_eval_dataset=True,
                )
        finally:
            del _validations[self._model]
        return logs


def validation_of(
    model: Any,
    data: Any,
    *,
    batch_size: int | None,
    steps: int | None,
    open_data: Callable[..., Evaluation | ServerEvaluation],
) -> OwnValidation | Evaluation | ServerEvaluation:
    """What validates in a `fit`: the `evaluate` that the model overrides, else ours.

    Args:
        model: the model.
        data: the `validation_data`.
        batch_size: of the global batch, for arrays.
        steps: batches of a validation; all where None.
        open_data: gives the evaluation on x, y and the options of `evaluate`.
    """
    own = OwnValidation(model, data, batch_size=batch_size, steps=steps, open_data=open_data)
    return own if has_own_evaluate(model) else own.evaluation


_validations: weakref.WeakKeyDictionary[Any, OwnValidation] = weakref.WeakKeyDictionary()
"""By model, the validation under way."""

_ours = Patches(lambda: {(keras.Model, "evaluate"): evaluate})
"""Has `super().evaluate` be ours, also where `phalanx.enable()` is not in force."""
