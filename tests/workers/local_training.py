"""Local steps as a few lines of NumPy, and the same training by `fit` on this worker."""

import os
from dataclasses import replace

import numpy as np

RATE, INNER_MOMENTUM = 0.02, 0.9


def data(rows):
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 5)).astype("float32")
    y = (x @ random.normal(size=(5, 1)) + 0.3 * random.normal(size=(rows, 1))).astype("float32")
    return x, y


def use(**options):
    """Have this worker's launcher ask for local steps."""
    from phalanx.cluster.spec import WorkerSpec
    from phalanx.cluster.sync_options import SyncOptions

    spec = WorkerSpec.from_environment(os.environ)
    os.environ.update(replace(spec, sync=SyncOptions(**options)).to_environment())


def model(optimizer=None):
    import keras

    keras.utils.set_random_seed(4)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    made.compile(optimizer or keras.optimizers.SGD(RATE, momentum=INNER_MOMENTUM), "mse")
    return made


def train(options, rows, batch, epochs=2, **fit_options):
    """Train by `fit`; weights before and after, the history, and the counted steps."""
    import phalanx

    use(**options)
    phalanx.enable()
    made = model()
    before = made.get_weights()
    x, y = data(rows)
    fit_options = {"verbose": 0, "shuffle": False, **fit_options}
    history = made.fit(x, y, batch_size=batch, epochs=epochs, **fit_options).history
    return {
        "before": before,
        "after": made.get_weights(),
        "history": history,
        "steps": int(made.optimizer.iterations.numpy()),
        "optimizer": [np.array(v) for v in made.optimizer.variables],
    }


def rows_of(worker, workers, start, count):
    base, odd = divmod(count, workers)
    first = start + worker * base + min(worker, odd)
    return slice(first, first + base + (worker < odd))


def simulate_streaming(before, workers, rows, batch, epochs, *, every, delay, mixing, rate=0.7):
    """The weights after local steps with SGD and momentum, in two fragments: kernel and bias."""
    x, y = (array.astype("float64") for array in data(rows))
    x = np.hstack([x, np.ones((rows, 1))])
    anchor = np.vstack([before[0], before[1][None]]).astype("float64")
    local = [anchor.copy() for _ in range(workers)]
    slots = [np.zeros_like(anchor) for _ in range(workers)]
    outer = np.zeros_like(anchor)
    fragments, offsets = [slice(0, -1), slice(-1, None)], [-(-every // 2), every]

    def difference(part, counts):
        shares = counts / counts.sum()
        return sum(s * (anchor[part] - w[part]) for s, w in zip(shares, local, strict=True))

    def apply(part, delta, keep):
        outer[part] = 0.9 * outer[part] + delta
        anchor[part] -= rate * (delta + 0.9 * outer[part])
        for w in local:
            w[part] = keep * w[part] + (1 - keep) * anchor[part]

    for _ in range(epochs):
        counts = [np.zeros(workers), np.zeros(workers)]
        under_way = {}
        for t, start in enumerate(range(0, rows, batch), start=1):
            count = min(batch, rows - start)
            for r in range(workers):
                part = rows_of(r, workers, start, count)
                for each in counts:
                    each[r] += len(x[part])
                if len(x[part]):
                    gradient = 2 * x[part].T @ (x[part] @ local[r] - y[part]) / len(x[part])
                    slots[r] = INNER_MOMENTUM * slots[r] - RATE * gradient
                    local[r] = local[r] + slots[r]
            for f in [f for f, (due, _) in under_way.items() if due == t]:
                apply(fragments[f], under_way.pop(f)[1], mixing)
            for f in (0, 1):
                if (t - offsets[f]) % every == 0:
                    delta = difference(fragments[f], counts[f])
                    counts[f] = np.zeros(workers)
                    if delay:
                        under_way[f] = t + delay, delta
                    else:
                        apply(fragments[f], delta, 0.0)
        for f in sorted(under_way, key=lambda f: under_way[f][0]):
            apply(fragments[f], under_way[f][1], mixing)
        for f in (0, 1):
            if counts[f].sum():
                apply(fragments[f], difference(fragments[f], counts[f]), 0.0)
        local = [anchor.copy() for _ in range(workers)]
    return [anchor[:-1], anchor[-1]]


def simulate(before, workers, rows, batch, epochs, *, every, warmup=0, rate=None, momentum=0.9):
    """The weights after local steps with SGD and momentum on one linear layer.

    `rate` is the outer learning rate, None for the mean of the weights. `workers` may be a list, of
    the workers of each epoch; another number of them begins with the mean of the slots.
    """
    of_epochs = [workers] * epochs if isinstance(workers, int) else workers
    workers = of_epochs[0]
    x, y = (array.astype("float64") for array in data(rows))
    x = np.hstack([x, np.ones((rows, 1))])
    anchor = np.vstack([before[0], before[1][None]]).astype("float64")
    local = [anchor.copy() for _ in range(workers)]
    slots = [np.zeros_like(anchor) for _ in range(workers)]
    outer = np.zeros_like(anchor)
    step = since = 0
    counts = np.zeros(workers)

    def gradient(weights, part):
        return 2 * x[part].T @ (x[part] @ weights - y[part]) / len(x[part])

    for workers_now in of_epochs:
        if workers_now != workers:
            workers = workers_now
            local = [anchor.copy() for _ in range(workers)]
            slots = [np.mean(slots, axis=0) for _ in range(workers)]
            counts = np.zeros(workers)
        for start in range(0, rows, batch):
            count = min(batch, rows - start)
            is_local = step >= warmup
            for r in range(workers):
                part = slice(start, start + count)
                part = rows_of(r, workers, start, count) if is_local else part
                counts[r] += len(x[part]) * is_local
                if len(x[part]):
                    slots[r] = INNER_MOMENTUM * slots[r] - RATE * gradient(local[r], part)
                    local[r] = local[r] + slots[r]
            step += 1
            since += is_local
            if not is_local:
                anchor = local[0].copy()
            elif since == every or start + batch >= rows:
                shares = counts / counts.sum()
                delta = sum(s * (anchor - w) for s, w in zip(shares, local, strict=True))
                if rate is None:
                    anchor = anchor - delta
                else:
                    outer = momentum * outer + delta
                    anchor = anchor - rate * (delta + momentum * outer)
                local = [anchor.copy() for _ in range(workers)]
                since, counts = 0, np.zeros(workers)
    return [anchor[:-1], anchor[-1]], np.mean(slots, axis=0)
