"""Sums over workers that travel in a thread, while this process computes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue

import tensorflow as tf

from phalanx.distributed.collectives import Collectives


class BackgroundSum:
    """Adds up tensors over workers in a thread of its own, one list after the other.

    All workers must start the same lists in the same order.
    """

    def __init__(self, collectives: Collectives) -> None:
        """Exchange through `collectives`, which no other code uses.

        The thread ends with the process: a sum that waits for a lost worker does not keep it.
        """
        self._collectives = collectives
        self._sum = tf.function(self._sums, autograph=False)
        self._queue: SimpleQueue[tuple[Sequence[tf.Tensor], Future[list[tf.Tensor]]]] = (
            SimpleQueue()
        )
        threading.Thread(target=self._work, name="phalanx-sync", daemon=True).start()

    def start(self, tensors: Sequence[tf.Tensor]) -> Future[list[tf.Tensor]]:
        """Add up `tensors`; the sums come later."""
        total: Future[list[tf.Tensor]] = Future()
        self._queue.put((tensors, total))
        return total

    def _sums(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        with tf.device(self._collectives.device):
            return [self._collectives.all_reduce(tensor) for tensor in tensors]

    def _work(self) -> None:
        while True:
            tensors, total = self._queue.get()
            try:
                sums = self._sum(list(tensors))
                for one in sums:
                    one[:1].numpy()  # waits for the device
            except BaseException as error:
                total.set_exception(error)
            else:
                total.set_result(sums)
