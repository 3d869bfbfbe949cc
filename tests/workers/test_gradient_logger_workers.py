"""GradientLogger on two workers: each one's own gradient, the total, and equal weights."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from phalanx.cluster.spec import WorkerSpec

ROWS = 11  # batches of 8 and 3: shares of 4 and 4, then 2 and 1


def rank():
    return WorkerSpec.from_environment(os.environ).rank


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    return x, rng.normal(size=(ROWS, 1)).astype("float32")


def model():
    import keras

    keras.utils.set_random_seed(3)
    made = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )
    made.compile(keras.optimizers.SGD(0.1, global_clipnorm=0.5), "mse")
    return made


def train(directory, **options):
    import phalanx

    with_run_dir(directory)
    looks = []
    if directory:
        looks = [phalanx.callbacks.GradientLogger(every_n_steps=1, max_overhead=None, **options)]
    trained = model()
    x, y = data()
    phalanx.fit(trained, x, y, batch_size=8, shuffle=False, verbose=0, callbacks=looks)
    return [w.numpy() for w in trained.weights]


def with_run_dir(directory):
    """As `phalanx run` gives it: in this worker's own spec."""
    spec = json.loads(os.environ["PHALANX_WORKER_SPEC"])
    os.environ["PHALANX_WORKER_SPEC"] = json.dumps(
        {**spec, "run_dir": directory and str(directory)}
    )


def norms_by_hand():
    """By step: the total's global norm, and each worker's own."""
    made, (x, y) = model(), data()

    def gradient(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((made(x[rows]) - y[rows]) ** 2)
        return tape.gradient(loss, made.trainable_variables)

    found = []
    for rows in (np.arange(8), np.arange(8, ROWS)):
        parts = np.array_split(rows, 2)
        total = gradient(rows)
        own = [float(tf.linalg.global_norm(gradient(part))) for part in parts]
        found.append((float(tf.linalg.global_norm(total)), own, [g.numpy() for g in total]))
        made.optimizer.apply(total, made.trainable_variables)
    return found


def test_every_worker_has_its_run_and_the_chief_the_total(tmp_path, pool):
    from phalanx.monitoring.event_log import read_records
    from phalanx.monitoring.tensorboard_files import read_histograms, read_scalars

    def function(directory):
        return train(directory), train(None)

    for looked, without in pool(2).run(function, args=(str(tmp_path),), deadline=600):
        for a, b in zip(looked, without, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    board = tmp_path / "tensorboard"
    assert sorted(p.name for p in board.iterdir()) == ["global", "worker-0", "worker-1"]
    total = read_scalars(board / "global")
    own = [read_scalars(board / f"worker-{i}") for i in range(2)]
    for step, (norm, norms, gradients) in enumerate(norms_by_hand(), start=1):
        assert dict(total["gradients/norm"])[step] == pytest.approx(norm, rel=1e-4)
        clipped = dict(total["gradients/clipped_norm"])[step]
        assert clipped == pytest.approx(min(norm, 0.5), rel=1e-4)
        shown = sorted(dict(points)[step] for t, points in total.items() if "gradient_norm/" in t)
        assert shown == pytest.approx(sorted(np.linalg.norm(g) for g in gradients), rel=1e-3)
        for scalars, expected in zip(own, norms, strict=True):
            assert dict(scalars["gradients/norm"])[step] == pytest.approx(expected, rel=1e-4)
    shares = [4, 4], [2, 1]
    for tag in (t for t in total if t.startswith("gradient_mean/")):
        for step, counts in enumerate(shares, start=1):
            mean = np.average([dict(s[tag])[step] for s in own], weights=counts)
            assert dict(total[tag])[step] == pytest.approx(mean, rel=1e-3, abs=1e-6)
    for run in ("global", "worker-0", "worker-1"):
        for points in read_histograms(board / run).values():
            assert len({buckets[:, 2].sum() for _, buckets in points}) == 1
    for worker in range(2):
        found = read_records(tmp_path / "records" / f"worker-{worker}.jsonl").records
        gradients = [r for r in found if r["kind"] == "gradients"]
        runs = {"worker-0", "global"} if worker == 0 else {"worker-1"}
        assert {r["run"] for r in gradients} == runs
        for record in gradients:
            scalars = read_scalars(board / record["run"])
            shown = {t: dict(scalars[t])[record["step"]] for t in record["values"]}
            assert shown == pytest.approx(record["values"], rel=1e-6)


@pytest.mark.full
def test_both_workers_look_at_the_same_layers(tmp_path, pool):
    from phalanx.monitoring.tensorboard_files import read_scalars

    def function(directory):
        train(directory, sample_rate=0.5)

    pool(2).run(function, args=(str(tmp_path),), deadline=600)
    looks = [
        {t: [s for s, _ in p] for t, p in read_scalars(tmp_path / "tensorboard" / run).items()}
        for run in ("worker-0", "worker-1")
    ]
    assert looks[0] == looks[1]


@pytest.mark.full
def test_a_loop_of_ones_own_is_observed_in_a_worker_group(tmp_path, pool):
    from phalanx.monitoring.tensorboard_files import read_scalars

    def function(directory):
        import phalanx

        strategy = tf.distribute.get_strategy()
        made, (x, y) = model(), data()
        made.optimizer.build(made.trainable_variables)

        def on_replica(x, y):
            with tf.GradientTape() as tape:
                each = tf.reduce_mean((made(x) - y) ** 2, -1)
                loss = tf.nn.compute_average_loss(each, global_batch_size=8)
            gradients = tape.gradient(loss, made.trainable_variables)
            made.optimizer.apply(gradients, made.trainable_variables)

        callback = phalanx.callbacks.GradientLogger(log_dir=directory)
        step = tf.function(lambda x, y: strategy.run(on_replica, args=(x, y)))
        step = phalanx.observe_gradients(step, callback)
        whole = tf.data.Dataset.from_tensor_slices((x[:8], y[:8])).batch(8)
        for batch in strategy.experimental_distribute_dataset(whole):
            step(*batch)

    pool(2).run(function, args=(str(tmp_path),), deadline=600)
    norm, own, _ = norms_by_hand()[0]
    for run, expected in [("global", norm), ("worker-0", own[0]), ("worker-1", own[1])]:
        ((step, shown),) = read_scalars(tmp_path / run)["gradients/norm"]
        assert (step, shown) == (1, pytest.approx(expected, rel=1e-4))


def test_a_gradient_that_is_not_finite_names_the_worker(pool):
    def function():
        import phalanx
        from phalanx.errors import NonFiniteError

        x, y = data()
        x[9] = np.nan  # the second batch's second row: worker 0
        try:
            phalanx.fit(model(), x, y, batch_size=8, shuffle=False, verbose=0)
        except NonFiniteError as error:
            return str(error)
        return "continued"

    for output in pool(2).run(function, deadline=600):
        assert "at step 2; it came from worker 0." in output


def test_the_tensorboard_callback_alone_works_in_a_worker_group(tmp_path, pool):
    def function(directory):
        import keras

        import phalanx

        trained, (x, y) = model(), data()
        board = keras.callbacks.TensorBoard(
            f"{directory}/{rank()}", histogram_freq=1, update_freq=1
        )
        phalanx.fit(trained, x, y, batch_size=8, epochs=2, verbose=0, callbacks=[board])

    pool(2).run(function, args=(str(tmp_path),), deadline=600)
    assert list((tmp_path / "0").rglob("*tfevents*"))
