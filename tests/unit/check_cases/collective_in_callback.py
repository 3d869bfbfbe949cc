"""A callback's own all-reduce, and a loop's, on one worker."""

import phalanx
import tensorflow as tf


class FaultyDisk(phalanx.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if self.cluster.is_chief:
            print(self.all_reduce({"free": 1.0}, how="min"))  # expect: collective-on-some-ranks
        if self.cluster.rank == 0 and self.any_worker(True):  # right, and hard to recognize: not found
            print("all")


strategy = phalanx.strategy()
for step in range(100):
    strategy.run(train_step)
    if strategy.cluster_resolver.task_id == 0 and step % 10 == 0:
        strategy.run(test_step)  # expect: collective-on-some-ranks
