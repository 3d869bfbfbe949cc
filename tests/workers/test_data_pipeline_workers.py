"""Real workers on pipelines: one device's weights, and on from the middle with more or fewer."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from phalanx.testing import run_single

pytestmark = pytest.mark.timeout(1500)
SAMPLES, BATCH, EPOCHS = 46, 8, 3


def make_files(top):
    """Images by class, a CSV file and a Parquet file, of equal numbers."""
    import pyarrow
    import pyarrow.parquet

    random = np.random.default_rng(4)
    for number in range(SAMPLES):
        folder = top / "images" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        image = random.integers(0, 255, (6, 5, 1), np.uint8)
        (folder / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    columns = {name: random.normal(size=SAMPLES).astype("float32") for name in "abc"}
    table = pyarrow.table({**columns, "y": random.integers(0, 3, SAMPLES)})
    pyarrow.parquet.write_table(table, top / "a.parquet")
    lines = ["a,b,c,y", *(",".join(map(str, row.values())) for row in table.to_pylist())]
    (top / "a.csv").write_text("\n".join(lines) + "\n")


def flipped(image, label, seed):
    return tf.image.stateless_random_flip_left_right(image, seed), label


def pipelines(top):
    import phalanx

    def scaled(image, label):
        return tf.cast(image, tf.float32) / 255, label

    pipeline = phalanx.data.pipeline
    images = phalanx.data.images(f"{top}/images", channels=1)
    parquet = phalanx.data.parquet(f"{top}/a.parquet", label="y", as_vector=True)
    csv = phalanx.data.csv(f"{top}/a.csv", label="y", as_vector=True)
    sequences = [(np.arange(1 + n % 7, dtype="float32"), n % 3) for n in range(SAMPLES)]
    padding = phalanx.data.Padding(lengths=lambda x, y: tf.size(x), buckets=[3, 7])
    return {
        "images": (
            (6, 5, 1),
            pipeline(images, BATCH, map=scaled, augment=flipped, cache="memory", seed=2),
        ),
        "csv": ((3,), pipeline(csv, BATCH, seed=2)),
        "mixed": ((3,), pipeline(phalanx.data.mix([csv, parquet], [1, 3]), BATCH, seed=2)),
        "balanced": ((3,), pipeline(parquet, BATCH, balance=True, steps_per_epoch=4)),
        "sequences": ((None,), pipeline(sequences, BATCH, padding=padding)),
    }


def model_for(shape):
    import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    if shape == (None,):
        middle = [layers.Reshape((-1, 1)), layers.GlobalAveragePooling1D()]
    else:
        middle = [layers.Flatten()]
    model = keras.Sequential([keras.Input(shape), *middle, layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


def trained(top, names=None):
    """For each pipeline, or each of `names`: weights, history and evaluation."""
    import phalanx

    found = {}
    made = pipelines(top)
    for name in names or made:
        shape, dataset = made[name]
        model = model_for(shape)
        history = phalanx.fit(model, dataset, epochs=EPOCHS, verbose=0).history
        again = phalanx.evaluate(model, dataset, verbose=0)
        found[name] = (model.get_weights(), history, again)
    return found


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pipelines")
    make_files(directory)
    return directory


@pytest.fixture(scope="module")
def one_device(top):
    """`one_device("images", ...)`: what one device makes of these pipelines."""
    return functools.cache(lambda *names: run_single(trained, args=(str(top), names), deadline=600))


@pytest.mark.parametrize(
    ("workers", "names"),
    [
        (2, ["images", "mixed"]),
        pytest.param(2, ["csv", "balanced", "sequences"], marks=pytest.mark.full),
        pytest.param(3, ["images", "sequences"], marks=pytest.mark.full),
    ],
)
def test_workers_train_what_one_device_trains(top, one_device, workers, names, pool):
    for found in pool(workers).run(trained, args=(str(top), names), deadline=600):
        assert list(found) == names
        for name, (weights, history, again) in found.items():
            expected, expected_history, expected_again = one_device(*names)[name]
            for one, other in zip(expected, weights, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=name)
            np.testing.assert_allclose(
                expected_history["loss"], history["loss"], rtol=1e-5, err_msg=name
            )
            np.testing.assert_allclose(expected_again, again, rtol=1e-5, err_msg=name)


def resumed(top, directory, broken_off):
    """Train on images with checkpoints; weights, or None where it was to be broken off."""
    import keras

    import phalanx

    class BreakOff(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if broken_off and self.steps == 9:  # in the middle of the second epoch
                raise KeyError("broken off")

    every = phalanx.callbacks.every_n_steps(2)
    keeper = phalanx.callbacks.Checkpoint(directory, every=every, async_save=False)
    shape, dataset = pipelines(top)["images"]
    model = model_for(shape)
    try:
        phalanx.fit(model, dataset, epochs=EPOCHS, verbose=0, callbacks=[keeper, BreakOff()])
    except KeyError:
        return None
    return model.get_weights()


def run(pool, workers, *args):
    if workers == 1:
        return run_single(resumed, args=args, deadline=600)
    return pool(workers).run(resumed, args=args, deadline=600)[0]


@pytest.mark.full
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_continues_in_the_middle_of_an_epoch_with_other_workers(
    top, one_device, tmp_path, before, after, pool
):
    assert run(pool, before, str(top), str(tmp_path), True) is None
    weights = run(pool, after, str(top), str(tmp_path), False)
    for one, other in zip(one_device("images")["images"][0], weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def on_bad_data():
    import phalanx

    class Source:
        def __len__(self):
            return 12

        def __getitem__(self, row):
            if row == 5 and self.broken:
                raise ValueError("rotten")
            return np.ones(3, "float32") * row, row % 3

        broken = False

    source = Source()
    left_out = phalanx.data.pipeline(source, 4, on_error="skip", seed=1)
    dataset = phalanx.data.pipeline(source, 4, seed=1)
    source.broken = True
    model = model_for((3,))
    phalanx.fit(model, left_out, verbose=0)
    try:
        phalanx.fit(model, dataset, verbose=0)
    except phalanx.errors.DataError as error:
        return phalanx.data.skipped(left_out), str(error)
    except Exception as error:
        return phalanx.data.skipped(left_out), f"a peer's failure: {type(error).__name__}"
    return None


@pytest.mark.full
def test_a_sample_that_cannot_be_read_is_named_to_the_user():
    left_out, message = run_single(on_bad_data, deadline=600)
    assert left_out == {5: "sample 5: ValueError: rotten"}
    assert message.startswith("Asked to read sample 5; found: ValueError: rotten.")
