"""PyTorch: DistributedDataParallel over gloo, batches sliced from tensors in memory."""

from __future__ import annotations

import torch
from torch import nn

from step_time.laps import Lap, Timer
from step_time.place import Place
from step_time.workload import CLASSES, GLOBAL_BATCH, HIDDEN, LEARNING_RATE, samples


class Contender:
    def __init__(self, place: Place) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self._place = place
        if place.world_size > 1:
            torch.distributed.init_process_group(
                "gloo",
                init_method=f"tcp://{place.addresses[0]}",
                rank=place.rank,
                world_size=place.world_size,
            )
        self._models = {}

    def block(self, name: str, steps: int, warm_up: int) -> Lap:
        if name not in self._models:
            model = _model(name)
            if self._place.world_size > 1:
                model = nn.parallel.DistributedDataParallel(model)
            self._models[name] = model, torch.optim.Adam(model.parameters(), LEARNING_RATE)
        model, optimizer = self._models[name]
        x, y = (torch.from_numpy(a) for a in samples(name, warm_up + steps))
        if name == "cnn":
            x = x.permute(0, 3, 1, 2).contiguous()
        y = y.long()
        # All ranks draw one order, of which each takes its slice, as a sampler would do.
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
        share = GLOBAL_BATCH // self._place.world_size
        first = self._place.rank * share
        loss_of = nn.CrossEntropyLoss()
        loss_sum, correct = torch.zeros(()), torch.zeros((), dtype=torch.long)
        timer = Timer()
        for i in range(warm_up + steps):
            if i == warm_up:
                timer.start()
            rows = order[i * GLOBAL_BATCH + first : i * GLOBAL_BATCH + first + share]
            inputs, targets = x[rows], y[rows]
            optimizer.zero_grad(set_to_none=True)
            outputs = model(inputs)
            loss = loss_of(outputs, targets)
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            correct += (outputs.detach().argmax(1) == targets).sum()
        return timer.lap(steps)


def _model(name: str) -> nn.Module:
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1600, 64),
            nn.ReLU(),
            nn.Linear(64, CLASSES),
        )
    layers, width = [], 784
    for units in HIDDEN:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))
