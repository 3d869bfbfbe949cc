"""The loop over the batches of one epoch, or of one evaluation: where all steps pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.data.batch_iterator import BatchIterator
from phalanx.training.step_function import Outputs


@dataclass(frozen=True, kw_only=True)
class BatchLoop:
    """What is done for each batch; `fit` and `evaluate` differ in this only.

    Attributes:
        stream: the batches.
        execute: runs up to so many steps; see `StepFunction.on_iterator`.
        is_due: says whether to read the metrics after so many steps.
        read: reads them; gets what the last step returned, and the steps done.
        begin: the hook before a batch; gets the batch's number.
        end: the hook after a batch; gets the number of the last one done, and the logs.
        is_stopped: whether a hook has asked to leave the rest out.
        after: called after that hook, with the batches done in all and just now.
    """

    stream: BatchIterator
    execute: Callable[[Any, int], tuple[int, Outputs]]
    is_due: Callable[[int], bool]
    read: Callable[[Outputs, int], Mapping[str, float]]
    begin: Callable[[int], None]
    end: Callable[[int, Mapping[str, float]], None]
    is_stopped: Callable[[], bool]
    after: Callable[[int, int], None] = lambda batches, done: None

    def run(self) -> Outputs:
        """Go through the batches once.

        Returns:
            What the last step returned; empty where the data gave no batch.
        """
        outputs: Outputs = ()
        logs: Mapping[str, float] = {}
        for step, size, iterator in self.stream.epoch():
            self.begin(step)
            try:
                done, outputs = self.execute(iterator, size)
            except StopIteration:
                self.stream.reached_end(steps_done=0)
                continue
            self.stream.took(done)
            if done < size:
                self.stream.reached_end(steps_done=done)
            if self.is_due(step + done):
                logs = self.read(outputs, step + done)
            self.end(step + done - 1, logs)
            self.after(step + done, done)
            if self.is_stopped():
                break
        return outputs
