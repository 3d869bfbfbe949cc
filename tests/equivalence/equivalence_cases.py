"""The trainings of the equivalence suite: Case objects by name."""

import functools

import equivalence_graphs as graphs
import equivalence_mixed
import equivalence_models
import equivalence_states
import equivalence_steps
import keras
import numpy as np
import tensorflow as tf
from equivalence_case import Case, features, labels, tokens
from equivalence_models import (
    CountingMetric,
    HandWrittenLoss,
    LatentVector,
    Lazy,
    LazyNoise,
    OwnTrainStep,
    RandomBatches,
    WordsAndPlaces,
    compiled,
    conv,
    dense,
    embedding,
    lstm_tagger,
    noisy,
    two_in_two_out,
)

O = keras.optimizers  # noqa: E741 - as short as it is frequent
L = keras.layers


def arrays(n=29, batch_size=8, **more):
    return lambda: {"x": features(n), "y": labels(n), "batch_size": batch_size, **more}


def case(name, build=None, data=None, **more):
    return Case(name=name, build=build or dense(lambda: O.SGD(0.1)), data=data or arrays(), **more)


def trained(name, build=None, data=None, **more):
    """A case that compares weights only: its evaluation would be as in others."""
    return case(name, build, data, weights_show_all=True, **more)


def optimizers():
    made = {
        "sgd": lambda: O.SGD(0.1),
        "momentum": lambda: O.SGD(0.1, momentum=0.9, nesterov=True),
        "adam": lambda: O.Adam(0.01),
        "adamw_weight_decay": lambda: O.AdamW(0.01, weight_decay=0.1),
        "lion": lambda: O.Lion(0.01),
        "adafactor": lambda: O.Adafactor(0.01),
        "rmsprop": lambda: O.RMSprop(0.01),
        "nadam": lambda: O.Nadam(0.01),
        "clipnorm": lambda: O.SGD(0.5, clipnorm=0.05),
        "global_clipnorm": lambda: O.SGD(0.5, global_clipnorm=0.05),
        "clipvalue": lambda: O.SGD(0.5, clipvalue=0.01),
        "own_apply": lambda: equivalence_steps.ClipsEachStep(0.5),
        "accumulation": lambda: O.Adam(0.01, gradient_accumulation_steps=3),
        "accumulation_clipped": lambda: O.SGD(
            0.5, gradient_accumulation_steps=2, global_clipnorm=0.05
        ),
        "ema": lambda: O.Adam(0.01, use_ema=True, ema_momentum=0.8),
        "ema_overwrite": lambda: O.Adam(
            0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
        ),
        "loss_scale": lambda: O.LossScaleOptimizer(O.SGD(0.1), dynamic_growth_steps=3),
        "loss_scale_clipped": lambda: O.LossScaleOptimizer(O.SGD(0.5, global_clipnorm=0.05)),
        "loss_scale_overflow": lambda: O.LossScaleOptimizer(O.SGD(0.1), initial_scale=2.0**127),
        "fixed_loss_scale": lambda: O.SGD(0.1, loss_scale_factor=64.0, clipnorm=0.05),
        "multi_optimizer": lambda: several_optimizers(),
        "multi_optimizer_scaled": lambda: O.LossScaleOptimizer(several_optimizers(), 4.0),
        "schedule": lambda: O.SGD(O.schedules.ExponentialDecay(0.2, 2, 0.5)),
    }
    return [trained(name, dense(make)) for name, make in made.items()]


def several_optimizers():
    if not hasattr(O, "MultiOptimizer"):  # before Keras 3.15
        return O.SGD(0.5, momentum=0.9)
    biases = O.Adam(0.05, clipnorm=0.01)
    return O.MultiOptimizer(O.OptimizerMap(O.SGD(0.5, momentum=0.9), {".*/bias": biases}))


def shapes_of_data():
    """Every remainder, and batches smaller than the number of replicas."""
    adam = dense(lambda: O.Adam(0.01))
    none = case("remainder_0", adam, arrays(n=16))
    remainders = [trained(f"remainder_{r}", adam, arrays(n=16 + r)) for r in range(1, 8)]
    few = [trained(f"only_{n}_samples", data=arrays(n=n)) for n in (1, 2)]
    return [none, *remainders, *few, trained("batch_1", data=arrays(n=5, batch_size=1))]


def losses():
    weights = np.random.default_rng(3).uniform(0.1, 2.0, size=29).astype("float32")
    from_logits = keras.losses.SparseCategoricalCrossentropy
    return [
        trained("sample_weight", data=arrays(sample_weight=weights)),
        trained("class_weight", data=arrays(class_weight={0: 0.5, 1: 2.0, 2: 1.0})),
        case(
            "sum_reduction",
            dense(lambda: O.SGD(0.01), loss=from_logits(from_logits=True, reduction="sum")),
        ),
        case(
            "mean_over_sample_weights",
            dense(
                lambda: O.SGD(0.1),
                loss=from_logits(from_logits=True, reduction="mean_with_sample_weight"),
            ),
            arrays(sample_weight=weights),
        ),
        case(
            "regularizers",
            dense(
                lambda: O.SGD(0.1),
                kernel_regularizer=keras.regularizers.L1L2(0.01, 0.01),
                activity_regularizer=keras.regularizers.L2(0.01),
            ),
        ),
        trained("constraint", dense(lambda: O.SGD(0.5), kernel_constraint="max_norm")),
        case("root_of_mean_loss", dense(lambda: O.SGD(0.5), loss=root_of_mean)),
        case(
            "quotient_of_sums_loss",
            dense(lambda: O.SGD(0.5), loss=with_dice, metrics=[root_of_column_means]),
            arrays(n=17, sample_weight=weights[:17]),
        ),
        trained("rows_compared_loss", dense(lambda: O.SGD(0.1), loss=rows_compared)),
        case("two_inputs_two_outputs", two_in_two_out(), two_inputs, held_out=two_inputs_held_out),
        case(
            "masked_sequences", lstm_tagger(), tagged, held_out=lambda: without_epochs(tagged(13))
        ),
    ]


def root_of_mean(y_true, y_pred):
    return tf.sqrt(tf.reduce_mean((one_hot(y_true) - tf.nn.softmax(y_pred)) ** 2))


def with_dice(y_true, y_pred):
    """A value for each row, of which each holds the quotient of the batch."""
    each = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    return each + keras.losses.dice(one_hot(y_true), tf.nn.softmax(y_pred))


def root_of_column_means(y_true, y_pred):
    error = one_hot(y_true) - tf.nn.softmax(y_pred)
    return tf.reduce_mean(tf.sqrt(tf.reduce_mean(error**2, axis=0)))


def rows_compared(y_true, y_pred):
    """Rows of one class attract each other."""
    same = tf.cast(tf.equal(tf.reshape(y_true, [-1, 1]), tf.reshape(y_true, [1, -1])), tf.float32)
    return -tf.reduce_mean(tf.nn.log_softmax(tf.matmul(y_pred, y_pred, transpose_b=True)) * same)


def one_hot(y_true):
    return tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), 3)


def two_inputs(n=29):
    return {
        "x": {"a": features(n), "b": features(n, seed=1)},
        "y": {"kind": labels(n), "size": features(n, seed=2, width=1)},
        "batch_size": 8,
    }


def two_inputs_held_out():
    return two_inputs(13)


def tagged(n=29):
    return {"x": tokens(n), "y": (tokens(n, seed=1) % 3), "batch_size": 8}


def without_epochs(arguments):
    return {k: v for k, v in arguments.items() if k != "epochs"}


def layers():
    def images(n=29):
        return {"x": features(n, width=64).reshape(n, 8, 8, 1), "y": labels(n), "batch_size": 8}

    def words(n=29):
        return {"x": tokens(n), "y": labels(n), "batch_size": 8}

    def padded_words():
        rows = tf.data.Dataset.from_tensor_slices((tokens(29, length=9), labels(29)))
        rows = rows.map(lambda x, y: (x[: 3 + y], y))
        return {"x": rows.padded_batch(8)}

    return [
        case("conv", conv(), images, held_out=lambda: images(13)),
        case(
            "batchnorm",
            conv(L.BatchNormalization(momentum=0.5)),
            images,
            held_out=lambda: images(13),
        ),
        trained("batchnorm_few", conv(L.BatchNormalization(momentum=0.5)), lambda: images(18)),
        trained(
            "batchnorm_masked",
            lstm_tagger(L.BatchNormalization(momentum=0.5)),
            tagged,
            tolerance=1e-4,
            why="a division by a small variance makes rounding larger; 1.1e-5 was found",
        ),
        case(
            "batchnorm_synchronized",
            conv(L.BatchNormalization(synchronized=True, momentum=0.5)),
            images,
            held_out=lambda: images(13),
            tolerance=1e-4,
            why="the variance of few values cancels in float32, on one device too",
        ),
        trained(
            "batchnorm_synchronized_few",
            conv(L.BatchNormalization(synchronized=True, momentum=0.5)),
            lambda: images(18),
            held_out=lambda: images(13),
            tolerance=1e-4,
            why="as above",
        ),
        case("embedding_sgd", embedding(lambda: O.SGD(0.5)), words, held_out=lambda: words(13)),
        trained(
            "embedding_adam", embedding(lambda: O.Adam(0.01)), words, held_out=lambda: words(13)
        ),
        trained(
            "embedding_clipped",
            embedding(lambda: O.SGD(0.5, global_clipnorm=0.05)),
            words,
            held_out=lambda: words(13),
        ),
        case("lazy_subclass", compiled(Lazy)),
        trained("embedded_places", compiled(WordsAndPlaces, optimizer=O.Adam), padded_words),
        case(
            "mixed_bfloat16",
            policy="mixed_bfloat16",
            tolerance=3e-2,
            why="bfloat16 keeps 8 bits, and sums in another order",
        ),
        trained("frozen_layer", dense(lambda: O.Adam(0.01), freeze_first=True)),
    ]


def exact_batches():
    rows = tf.data.Dataset.from_tensor_slices((features(28), labels(28)))
    return {"x": rows.batch(8, drop_remainder=True)}


def random_numbers():
    def images():
        return {"x": features(29, width=64).reshape(29, 8, 8, 1), "y": labels(29), "batch_size": 8}

    def sequences():
        return {"x": features(29, width=20).reshape(29, 5, 4), "y": labels(29), "batch_size": 8}

    def dropped():
        return L.Dropout(0.3, seed=1)

    augment = [
        lambda: L.RandomFlip("horizontal", seed=1),
        lambda: L.RandomRotation(0.2, seed=2),
        lambda: L.RandomTranslation(0.1, 0.1, seed=3),
        lambda: L.RandomBrightness(0.2, value_range=(-3, 3), seed=4),
    ]
    pooled = [L.GlobalAveragePooling1D]
    return [
        case("dropout", noisy(dropped)),
        trained(
            "dropout_odd_width", noisy(lambda: L.Dense(5), dropped, lambda: L.Dense(3), dropped)
        ),
        trained("dropout_static_batch", noisy(dropped), exact_batches),
        trained("dropout_eagerly", noisy(dropped, run_eagerly=True)),
        trained("dropout_steps", noisy(dropped, steps_per_execution=3)),
        trained("gaussian", noisy(lambda: L.GaussianNoise(0.5, seed=1), LatentVector)),
        trained(
            "spatial_dropout",
            noisy(lambda: L.SpatialDropout1D(0.3, seed=1), shape=(5, 4), head=pooled),
            sequences,
        ),
        trained(
            "recurrent_dropout",
            noisy(lambda: L.LSTM(4, dropout=0.3, recurrent_dropout=0.3, seed=1), shape=(5, 4)),
            sequences,
        ),
        trained(
            "lazy_noise",
            compiled(LazyNoise),
            arrays(n=17, epochs=3),
            tolerance=1e-4,
            why="the variance of few values cancels in float32, on one device too",
        ),
        trained("augmented", noisy(*augment, shape=(8, 8, 1), head=[L.Flatten]), images),
    ]


def metrics():
    return [
        case(
            "stateful_metrics",
            dense(
                lambda: O.SGD(0.1),
                metrics=lambda: [
                    "accuracy",
                    keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou"),
                    CountingMetric(name="counted"),
                ],
            ),
        ),
        case(
            "auc",
            dense(
                lambda: O.SGD(0.1),
                units=1,
                activation="sigmoid",
                loss="binary_crossentropy",
                metrics=lambda: [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="p")],
                weighted_metrics=lambda: ["accuracy"],
            ),
            lambda: {"x": features(29), "y": labels(29, classes=2)[:, None], "batch_size": 8},
            held_out=lambda: {
                "x": features(13, seed=5),
                "y": labels(13, classes=2)[:, None],
                "batch_size": 5,
            },
        ),
    ]


def executions():
    return [
        case("steps_per_execution_3", dense(lambda: O.Adam(0.01), steps_per_execution=3)),
        trained("steps_per_execution_4", dense(lambda: O.Adam(0.01), steps_per_execution=4)),
        trained(
            "steps_per_execution_unknown_length",
            dense(lambda: O.Adam(0.01), steps_per_execution=3),
            lambda: {"x": dataset().filter(lambda *_: True)},
        ),
        case("jit_compile", dense(lambda: O.SGD(0.5, global_clipnorm=0.05), jit_compile=True)),
        case("run_eagerly", dense(lambda: O.SGD(0.1, global_clipnorm=0.05), run_eagerly=True)),
        case("own_train_step", compiled(OwnTrainStep)),
        case("hand_written_loss", compiled(HandWrittenLoss, loss=None, metrics=None)),
        trained(
            "optimizer_outside_scope",
            dense(lambda: O.Adam(0.01)),
            scope_for_optimizer=False,
        ),
    ]


def dataset(n=29, batch_size=8):
    whole = tf.data.Dataset.from_tensor_slices((features(n), labels(n)))
    return whole.batch(batch_size)


def uneven_dataset():
    """Batches of 3, 8, 1, 8 and 5: the first is uneven, and one is smaller than a worker group."""
    ends = np.cumsum([3, 8, 1, 8, 5])
    x, y = features(25), labels(25)

    def batches():
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            yield x[begin:end], y[begin:end]

    return tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            tf.TensorSpec([None, 6], tf.float32),
            tf.TensorSpec([None], tf.int64),
        ),
    ).apply(tf.data.experimental.assert_cardinality(len(ends)))


def generator():
    x, y = features(400), labels(400)
    for begin in range(0, 400, 8):
        yield x[begin : begin + 8], y[begin : begin + 8]


def sources():
    return [
        trained("tf_data", data=lambda: {"x": dataset()}),
        trained("uneven_first_batch", data=lambda: {"x": uneven_dataset()}),
        trained(
            "unknown_length",
            dense(lambda: O.Adam(0.01)),
            lambda: {"x": dataset().filter(lambda *_: True)},
            reference="phalanx",  # Keras may count an iteration more than there are batches
        ),
        trained("drop_remainder", data=lambda: {"x": dataset(24)}),
        trained(
            "repeated_with_steps",
            data=lambda: {"x": dataset().repeat(), "steps_per_epoch": 3, "epochs": 3},
        ),
        trained("generator", data=lambda: {"x": generator(), "steps_per_epoch": 4}),
        trained("py_dataset", data=lambda: {"x": RandomBatches(29, 8)}),
        trained("shuffled", data=arrays(shuffle=True), reference="phalanx"),
        trained("shuffled_in_batches", data=arrays(shuffle="batch"), reference="phalanx"),
        trained(
            "dataset_shuffled",
            data=lambda: {
                "x": tf.data.Dataset.from_tensor_slices((features(29), labels(29)))
                .shuffle(29, seed=4)
                .batch(8)
            },
            reference="phalanx",  # Keras opens, and so shuffles, twice an epoch
        ),
        trained(
            "dataset_shuffled_unseeded",
            data=lambda: {
                "x": tf.data.Dataset.from_tensor_slices((features(29), labels(29)))
                .shuffle(29)
                .batch(8)
            },
            reference="phalanx",
        ),
        trained(
            "dataset_mapped",
            data=lambda: {
                "x": tf.data.Dataset.from_tensor_slices((features(29), labels(29)))
                .map(lambda x, y: (x * 2, y), num_parallel_calls=2)
                .shuffle(29, seed=4)
                .batch(8)
                .map(lambda x, y: (x / 3, y))
            },
            reference="phalanx",
        ),
        trained("validation_split", data=arrays(validation_split=0.3)),
        trained(
            "validation_uneven",
            data=arrays(
                validation_data=(features(10, seed=8), labels(10, seed=8)),
                validation_batch_size=4,
                validation_freq=2,
                epochs=4,
            ),
        ),
        trained("initial_epoch", data=arrays(initial_epoch=2, epochs=4)),
    ]


def callbacks():
    def stopping():
        return [
            keras.callbacks.EarlyStopping("loss", patience=1, min_delta=0.05),
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=0.02),
        ]

    def best():
        return [
            keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
            keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9),
        ]

    held_out = (features(10, seed=8), labels(10, seed=8))
    return [
        trained(
            "early_stopping",
            data=lambda: {**arrays(epochs=12)(), "callbacks": stopping()},
        ),
        trained(
            "restores_best",
            data=lambda: {
                **arrays(epochs=8, validation_data=held_out)(),
                "callbacks": best(),
            },
        ),
    ]


def own_steps():
    def made(kind, loss=None, optimizer=None):
        def build():
            model = kind()
            # Adam would blow up the rounding of gradients that are nothing, as Contrast has.
            given = optimizer() if optimizer else O.SGD(0.1, momentum=0.9, global_clipnorm=0.5)
            model.compile(given, loss=loss and loss())
            return model

        return build

    def unlike_rows():
        labelled = tf.data.Dataset.from_tensor_slices((features(18), labels(18))).batch(6, True)
        more = tf.data.Dataset.from_tensor_slices(features(72, seed=2)).batch(24, True)
        return {"x": tf.data.Dataset.zip((more, labelled))}

    def labelled_and_not():
        labelled = tf.data.Dataset.from_tensor_slices((features(21), labels(21))).batch(8)
        more = tf.data.Dataset.from_tensor_slices(features(21, seed=2)).batch(8)
        return {"x": tf.data.Dataset.zip((labelled, more))}

    def with_targets():
        return {"x": features(29), "y": features(29), "batch_size": 8}

    def even():
        return {"x": tf.data.Dataset.from_tensor_slices(features(27)).batch(8, True).prefetch(1)}

    def averaged():
        model = equivalence_steps.Adversaries()
        model.critic_optimizer = O.Adam(
            0.01, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2
        )
        model.compile(O.SGD(0.1))
        return model

    def tagger():
        model = keras.Sequential([keras.layers.Embedding(9, 4), keras.layers.Dense(5)])
        losses = equivalence_steps.mean_of_tagged, equivalence_steps.share_of_right
        model.compile(O.LossScaleOptimizer(O.SGD(0.5), 4.0), losses[0], metrics=[losses[1]])
        return model

    def by(loss):
        def build():
            model = equivalence_steps.network(8, 1)
            model.compile(O.SGD(0.02), loss, metrics=[loss])
            return model

        return build

    def one_row_left():
        y = labels(25)
        y[-1] = 1
        return {"x": features(25), "y": y[:, None], "batch_size": 8}

    def weighted_rows():
        return {**one_row_left(), "sample_weight": np.linspace(0.2, 2.0, 25)}

    def masked():
        layers = keras.layers
        model = keras.Sequential(
            [layers.Embedding(9, 4, mask_zero=True), layers.LSTM(5, return_sequences=True)]
        )
        model.compile(O.SGD(0.5), steps.mean_of_squares)
        return model

    def masked_words():
        words = tagged_words()["x"]
        return {"x": words, "y": np.sin(words)[:, :, None] * np.ones(5), "batch_size": 8}

    def tagged_words():
        lengths = 1 + 5 * np.arange(29) % 11
        words = (1 + np.arange(29 * 11).reshape(29, 11) % 8) * (np.arange(11) < lengths[:, None])
        return {"x": words, "y": (words * words) % 5 * (words > 0), "batch_size": 8}

    names = (
        "Adversaries", "GradientPenalty", "Unreduced", "SumOverRows", "FunctionsInside",
        "Derived",
        "Contrast", "UnreducedContrast", "SumOfContrast", "MadeInTheStep", "MeanOfCounted",
        "MeanOfSelected", "UnderOtherNames", "ClippedInTheStep", "SharpnessAware", "CountsOfRight",
        "AgainstAdversaries", "LearnsToLearn", "ClippedContrast", "Normalized", "NormalizedClipped",
    )  # fmt: skip
    steps, square = equivalence_steps, keras.losses.MeanSquaredError
    return [
        *(trained(name, made(getattr(steps, name))) for name in names),
        trained("EmbeddedInside", made(steps.EmbeddedInside, optimizer=O.Adam)),
        trained("EverySecond", made(steps.EverySecond), arrays(17, epochs=3)),
        trained("AccumulatesByHand", made(steps.AccumulatesByHand), arrays(17, epochs=3)),
        trained("ReportsNorm", made(steps.ReportsNorm), arrays(17, epochs=2)),
        trained("LeavesOutLarge", made(steps.LeavesOutLarge), arrays(17, epochs=3)),
        trained("NamedBatchSize", made(steps.NamedBatchSize), arrays(28)),
        trained("NamedSizeOfEvenBatches", made(steps.NamedSizeOfEvenBatches), even),
        trained("Autoencoder", made(steps.Autoencoder, square), with_targets),
        trained("SumOfActivity", made(steps.SumOfActivity, equivalence_models.logits_loss)),
        trained("Adversaries_averaged", averaged),
        trained("MeanOfTagged", tagger, tagged_words),
        trained("SumOfSquares", by(steps.sum_of_squares), one_row_left),
        trained("MeanOfOnes", by(steps.mean_of_ones), one_row_left),
        trained("MeanOfSquares_weighted", by(steps.mean_of_squares), weighted_rows),
        trained("MeanOfSquares_masked", masked, masked_words),
        trained("TwoKinds", made(steps.TwoKinds), unlike_rows),
        trained("ContrastOfTwoKinds", made(steps.ContrastOfTwoKinds), unlike_rows),
        trained("MeanOfTwoKinds", made(steps.MeanOfTwoKinds), unlike_rows),
        trained("PseudoLabels", made(steps.PseudoLabels), labelled_and_not),
        trained("PseudoLabelsBehindMore", made(steps.PseudoLabelsBehindMore), unlike_rows),
    ]


def with_layer(layer):
    def build():
        model = keras.Sequential([L.Dense(6, activation="tanh"), layer(), L.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(O.SGD(0.3), loss)
        return model

    return build


def with_step(kind, loss=None):
    def build():
        model = kind()
        model.compile(O.SGD(0.1), loss and loss())
        return model

    return build


def states():
    def stateful(*before):
        def build():
            # The rows of a batch continue where those of the batch before ended.
            recurrent = [
                L.LSTM(4, stateful=True, return_sequences=True, dropout=0.2, seed=1),
                L.Bidirectional(L.GRU(3, stateful=True)),
            ]
            model = keras.Sequential([*before, L.Reshape((3, 2)), *recurrent, L.Dense(3)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(O.SGD(0.3), loss, metrics=["accuracy"])
            return model

        return build

    def fours(seed):
        return lambda: {"x": features(20, seed), "y": labels(20, seed), "batch_size": 4}

    layers = ("Codebook", "RunningMoments", "Center", "LastWords")
    kinds = vars(equivalence_states)
    return [
        case(
            "stateful_recurrent",
            stateful(keras.Input(batch_shape=(4, 6))),
            fours(0),
            held_out=fours(5),
        ),
        trained("stateful_recurrent_built_by_fit", stateful(), fours(0)),
        *(trained(name, with_layer(kinds[name])) for name in layers),
        *(trained(n, with_step(kinds[n])) for n in ("FeatureQueue", "MemoryBank", "AddsUpResults")),
        trained("BatchBefore", with_step(kinds["BatchBefore"]), exact_batches),
        trained("LastWords_static_batch", with_layer(kinds["LastWords"]), exact_batches),
    ]


def mixed_rows():
    def mixup(kind):
        def build():
            model = kind([L.Dense(8, activation="tanh"), L.Dense(3)])
            model.compile(O.Adam(0.01), keras.losses.CategoricalCrossentropy(from_logits=True))
            return model

        return build

    def words():
        model = keras.Sequential([kinds["WordsOfRows"](), L.Dense(3)])
        model.compile(O.SGD(0.3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    kinds = vars(equivalence_mixed)
    steps = (
        "InBatchNegatives", "BarlowTwins", "HardestTriplets", "SpreadOfSelected", "SlopePenalty",
        "FakesBesideReals", "HalvesApart", "ClippedByRow", "SampledSoftmax", "SpectrumOfRows",
    )  # fmt: skip
    layers = ("NormalizesByHand", "Decorrelates", "Deviation")
    return [
        *(trained(name, with_step(kinds[name])) for name in steps),
        *(trained(name, with_layer(kinds[name])) for name in layers),
        trained("WordsOfRows", words),
        trained("RaggedTowers", with_step(kinds["RaggedTowers"]), kinds["histories"]),
        trained("MirroredMixup", mixup(kinds["MirroredMixup"])),
        # Keras 3.16 on one device draws the first numbers again for a last, smaller batch.
        trained("ShuffledMixup", mixup(kinds["ShuffledMixup"]), arrays(24)),
        trained(
            "InBatchNegatives_static_batch", with_step(kinds["InBatchNegatives"]), exact_batches
        ),
        trained(
            "NormalizesByHand_static_batch", with_layer(kinds["NormalizesByHand"]), exact_batches
        ),
        trained(
            "NegativesOfConstants_static_batch",
            with_step(kinds["NegativesOfConstants"]),
            exact_batches,
        ),
        trained(
            "LabelsOfConstants_static_batch",
            with_step(kinds["LabelsOfConstants"]),
            exact_batches,
        ),
        trained(
            "SizeInCall_no_remainder",
            with_step(kinds["SizeInCall"], equivalence_models.logits_loss),
            arrays(24),
        ),
        trained("SizeInLayer_no_remainder", with_layer(kinds["SizeInLayer"]), arrays(24)),
        *(
            trained(f"{name}_no_remainder", with_step(kinds[name]), arrays(24))
            for name in ("NegativesOfConstants", "SizeInPython", "InBatchNegatives")
        ),
    ]


def rows_of_graphs():
    sparse_nodes = functools.partial(graphs.classifier_of_nodes, is_sparse=True)
    over_constant = graphs.classifier_over_constant_graph
    over_sparse = functools.partial(over_constant, is_sparse=True)
    return [
        case(
            "GraphsJoinedByMap",
            graphs.classifier_of_molecules,
            graphs.joined_graphs,
            held_out=lambda: graphs.joined_graphs(13, 4, seed=5),
        ),
        trained("NodesOfOneGraph", graphs.classifier_of_nodes, graphs.one_graph),
        trained("NodesOfSparseGraph", sparse_nodes, graphs.one_sparse_graph),
        trained("NodesOfConstantGraph", over_constant, graphs.nodes_alone),
        trained("NodesOfConstantSparseGraph", over_sparse, graphs.nodes_alone),
        trained("Prototypes", graphs.classifier_by_examples, graphs.few_examples),
    ]


FAMILIES = {
    made.__name__: made()
    for made in (
        optimizers,
        shapes_of_data,
        losses,
        layers,
        random_numbers,
        metrics,
        executions,
        sources,
        callbacks,
        own_steps,
        states,
        mixed_rows,
        rows_of_graphs,
    )
}

CASES = {case.name: case for cases in FAMILIES.values() for case in cases}
