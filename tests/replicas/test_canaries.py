"""Keras's and TensorFlow's private names still are and do what src/phalanx/keras_compat says.

A test that fails here shows that upstream changed: look at keras_compat/, then at the test.
"""

import importlib
import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version
from small_models import (
    features,
    needs_multi_optimizer,
    on_replicas,
    small_model,
    targets,
    values,
)

from phalanx.distributed.tensorflow import no_heartbeat_timeout
from phalanx.keras_compat.assignments import METHODS, variable_classes
from phalanx.keras_compat.batch_constants import FUNC_GRAPH
from phalanx.keras_compat.data_adapters import take_passes_from
from phalanx.keras_compat.dataset_graph import transformations
from phalanx.keras_compat.dataset_rebuild import rebuild
from phalanx.keras_compat.loss_patches import backend_nn
from phalanx.keras_compat.model_access import keras_trainer
from phalanx.keras_compat.rng import (
    global_seed,
    is_seeded_by_script,
    keras_generator,
    tensorflow_generator,
)
from phalanx.keras_compat.shuffle_seeds import seeds_drawn, set_seeds_drawn
from phalanx.worker.seed import LauncherSeed

ADAPTERS = importlib.import_module("keras.src.trainers.data_adapters")
SLICING = importlib.import_module("keras.src.trainers.data_adapters.array_slicing")
LOSSES = importlib.import_module("keras.src.losses.loss")
NN = backend_nn()
PLAIN = importlib.import_module("keras.src.optimizers.base_optimizer").BaseOptimizer
OPTIMIZERS = keras.optimizers
IS_3_16 = Version(keras.__version__).release >= (3, 16)


def parameters(function):
    return list(inspect.signature(function).parameters)


class TestAdapters:
    def test_arrays_are_kept_where_we_look(self):
        adapter = ADAPTERS.get_data_adapter(
            x=features(5),
            y=targets(5),
            sample_weight=None,
            batch_size=2,
            steps_per_epoch=None,
            shuffle="batch",
            class_weight=None,
        )
        assert isinstance(adapter, ADAPTERS.ArrayDataAdapter)
        assert (adapter._num_samples, adapter._batch_size, adapter._shuffle) == (5, 2, "batch")
        assert [a.shape for a in keras.tree.flatten(adapter._inputs)] == [(5, 4), (5, 1)]
        assert adapter.num_batches == 3

    def test_a_dataset_is_not_arrays(self):
        adapter = ADAPTERS.get_data_adapter(x=tf.data.Dataset.range(3))
        assert not isinstance(adapter, ADAPTERS.ArrayDataAdapter)
        assert isinstance(adapter.get_tf_dataset(), tf.data.Dataset)

    def test_the_adapter_of_a_generator_peeks_at_two_batches_and_asks_for_each_pass(self):
        numbered = ((np.full((1, 1), n),) for n in range(9))
        adapter = ADAPTERS.get_data_adapter(x=numbered)
        take_passes_from(adapter, lambda: iter([(np.full((1, 1), 7),)]))
        dataset = adapter.get_tf_dataset()
        for _ in range(2):
            assert [batch[0].numpy().item() for batch in dataset] == [7]
        assert next(numbered)[0].item() == 2
        with pytest.raises(AttributeError):
            take_passes_from(
                ADAPTERS.get_data_adapter(x=tf.data.Dataset.range(3)), lambda: iter(())
            )

    def test_slicing_takes_rows_of_sparse_tensors(self):
        dense = np.eye(4, dtype="float32")
        (wrapped,) = SLICING.convert_to_sliceable(
            [tf.sparse.from_dense(dense)], target_backend="tensorflow"
        )
        assert isinstance(wrapped, SLICING.TensorflowSparseWrapper)
        rows = SLICING.slice_tensorflow_sparse_wrapper(wrapped, tf.constant([3, 1], tf.int64))
        assert (tf.sparse.to_dense(rows).numpy() == dense[[3, 1]]).all()

    def test_the_last_samples_validate(self):
        training, validation = SLICING.train_validation_split(
            (np.arange(10), None, None), validation_split=0.2
        )
        assert training[0].tolist() == list(range(8))
        assert validation[0].tolist() == [8, 9]


class TestModels:
    def test_a_model_knows_the_strategy_it_was_made_in(self, mirrored2):
        with mirrored2.scope():
            inside = small_model()
        assert inside._distribute_strategy is mirrored2
        assert inside.optimizer._distribution_strategy is mirrored2

    def test_a_model_is_built_from_a_spec(self):
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
        model._symbolic_build(data_batch=spec)
        assert model.built
        assert model.optimizer.built

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("_flatten_metrics_in_order", ["logs"]),
            ("_should_eval", ["epoch", "validation_freq"]),
            ("_assert_compile_called", ["method_name"]),
            ("_compute_loss", ["x", "y", "y_pred", "sample_weight", "training"]),
        ],
    )
    def test_methods_take_what_we_give(self, name, expected):
        assert parameters(getattr(small_model(), name)) == expected

    def test_attributes_are_there(self):
        model = small_model()
        assert model._initial_epoch is None
        assert isinstance(model._loss_tracker, keras.metrics.Mean)
        assert model._should_eval(1, 2)
        assert not model._should_eval(0, 2)

    def test_a_keras_variable_holds_a_tensorflow_variable(self):
        variable = keras.Variable(1.0)
        assert isinstance(variable._value, tf.Variable)
        replacement = tf.Variable(2.0)
        variable._value = replacement
        assert variable.value is replacement
        assert float(variable) == 2.0

    def test_a_keras_variable_maps_what_tensorflow_calls_otherwise(self):
        variable = keras.Variable(1.0, aggregation="sum", synchronization="on_read")
        aggregation = variable._map_aggregation(variable.aggregation)
        synchronization = variable._map_synchronization(variable.synchronization)
        assert aggregation == tf.VariableAggregation.SUM
        assert synchronization == tf.VariableSynchronization.ON_READ

    def test_an_optimizer_finds_variables_by_key(self):
        model = small_model()
        optimizer = model.optimizer
        optimizer.build(model.trainable_variables)
        found = optimizer._trainable_variables_indices
        assert found == {
            optimizer._var_key(v): i for i, v in enumerate(optimizer._trainable_variables)
        }

    def test_class_weights_become_sample_weights(self):
        utils = importlib.import_module("keras.src.trainers.data_adapters.data_adapter_utils")
        weights = utils.class_weight_to_sample_weights(np.array([0, 1, 0]), {0: 1.0, 1: 3.0})
        assert weights.tolist() == [1.0, 3.0, 1.0]

    def test_the_trainer_predicts(self):
        assert keras_trainer().__module__ == "keras.src.backend.tensorflow.trainer"
        assert keras.Model.predict is keras_trainer().predict
        assert keras.Model.predict_on_batch is keras_trainer().predict_on_batch

    def test_predictions_of_batches_are_put_together(self):
        together = importlib.import_module(
            "keras.src.backend.tensorflow.trainer"
        ).potentially_ragged_concat
        rows = together([tf.zeros([2, 3]), tf.zeros([1, 3])])
        assert rows.shape == (3, 3)
        assert together([tf.constant(1.0), tf.constant(2.0)]).shape == (2,)
        ragged = together([tf.zeros([2, 3, 1]), tf.zeros([1, 4, 1])])
        assert isinstance(ragged, tf.RaggedTensor)
        assert ragged.shape.as_list() == [3, None, 1]


class TestOptimizers:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("_backend_update_step", ["self", "grads", "trainable_variables", "learning_rate"]),
            ("_apply_weight_decay", ["self", "variables"]),
            ("_backend_increment_gradient_accumulators", ["self", "grads", "acc_grads"]),
            ("_overwrite_model_variables_with_average_value", ["self", "trainable_variables"]),
            pytest.param(
                "_backend_maybe_overwrite_model_variables",
                ["self", "trainable_variables"],
                marks=pytest.mark.skipif(not IS_3_16, reason="is part of `apply` before"),
            ),
        ],
    )
    def test_the_distributed_method_and_the_plain_one_agree(self, name, expected):
        assert parameters(getattr(PLAIN, name)) == expected
        assert parameters(getattr(OPTIMIZERS.Optimizer, name)) == expected
        assert getattr(OPTIMIZERS.Optimizer, name) is not getattr(PLAIN, name)

    def test_the_plain_optimizer_is_found_in_the_family(self):
        assert PLAIN in OPTIMIZERS.Optimizer.__mro__
        assert PLAIN.__module__.endswith("base_optimizer")

    def test_loss_scaling_has_one_common_apply(self):
        assert parameters(OPTIMIZERS.LossScaleOptimizer._common_apply) == [
            "self",
            "grads",
            "trainable_variables",
        ]
        assert "inner_optimizer" in vars(OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.SGD()))

    @needs_multi_optimizer
    def test_a_multi_optimizer_knows_the_optimizer_of_each_variable(self):
        inner = [OPTIMIZERS.SGD(), OPTIMIZERS.Adam()]
        variables = [keras.Variable(0.0, name="a"), keras.Variable(0.0, name="b")]
        mapped = OPTIMIZERS.OptimizerMap(inner[0], {"b": inner[1]})
        optimizer = OPTIMIZERS.MultiOptimizer(mapped)
        assert "apply" in vars(OPTIMIZERS.MultiOptimizer)
        optimizer.build(variables)
        numbers = optimizer._var_to_optimizer_idx
        assert list(numbers) == [optimizer._var_key(v) for v in variables]
        assert [optimizer.optimizers[i] for i in numbers.values()] == inner
        assert optimizer._trainable_variables == variables

    def test_the_step_counter_is_assigned_by_the_first_replica_only(self, mirrored2):
        with mirrored2.scope():
            counter = OPTIMIZERS.SGD()._iterations.value
        assert isinstance(counter, tf.distribute.DistributedValues)
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        assert [counter._aggregation, *(c._aggregation for c in counter.values)] == [first] * 3


class TestOperations:
    """Each operation of a graph that Python makes passes this method, whatever function asks."""

    def test_inputs_and_attributes_are_in_the_places_that_are_read(self, monkeypatch):
        seen, original = {}, FUNC_GRAPH._create_op_internal

        def create(
            self, op_type, inputs, dtypes=None, input_types=None, name=None, attrs=None, **of
        ):
            seen[op_type] = list(inputs), attrs
            return original(self, op_type, inputs, dtypes, input_types, name, attrs, **of)

        monkeypatch.setattr(FUNC_GRAPH, "_create_op_internal", create)

        @tf.function
        def step(x):
            both = tf.stack([x * tf.ones([3, 2]), tf.concat([x, x], 1)[:, :2]], axis=1)
            return tf.reduce_sum(both)

        step.get_concrete_function(tf.TensorSpec([None, 2]))
        assert [one.shape.rank for one in seen["Mul"][0]] == [2, 2]
        assert tf.get_static_value(seen["ConcatV2"][0][-1]) == 1
        assert seen["Pack"][1]["axis"].i == 1

    def test_a_jacobian_asks_the_tape_for_gradients(self, monkeypatch):
        asked, original = [], tf.GradientTape.gradient

        def gradient(self, target, *args, **kwargs):
            asked.append(target.shape.rank)
            return original(self, target, *args, **kwargs)

        monkeypatch.setattr(tf.GradientTape, "gradient", gradient)
        with tf.GradientTape(persistent=True) as tape:
            x = tf.ones([3, 2])
            tape.watch(x)
            y = x * x
        tape.jacobian(y[:, 0], x)
        tape.batch_jacobian(y, x)
        assert asked == [0, 1]


class TestRecurrentStates:
    """A stateful recurrent layer makes its states in one method, and compares numbers of rows."""

    def test_states_are_made_when_the_layer_is_built(self, monkeypatch):
        made, original = [], keras.layers.RNN._create_state_variables

        def create(self, batch_size):
            made.append(batch_size)
            original(self, batch_size)

        monkeypatch.setattr(keras.layers.RNN, "_create_state_variables", create)
        layer = keras.layers.LSTM(3, stateful=True)
        with pytest.raises(ValueError, match="batch size"):
            [layer(np.zeros((rows, 2, 1), "float32")) for rows in (4, 5)]
        assert made == [4]
        assert [tuple(state.shape) for state in layer.states] == [(4, 3), (4, 3)]
        layer._expected_batch_size = None
        with pytest.raises(ValueError, match="shape"):  # only when it keeps the state of five rows
            layer(np.zeros((5, 2, 1)), initial_state=[np.zeros((5, 3))] * 2)

    def test_what_a_model_is_built_by_is_in_a_stateless_scope(self):
        seen = []
        scope = importlib.import_module("keras.src.backend.common.stateless_scope")

        class Looks(keras.layers.Layer):
            def call(self, x):
                seen.append(scope.in_stateless_scope())
                return x

        layer = Looks()
        layer(keras.KerasTensor((2, 3)))
        layer(np.zeros((2, 3), "float32"))
        assert seen == [True, False]


class TestAssignments:
    """What a step assigns to a variable of one replica passes these methods."""

    @pytest.mark.parametrize("name", METHODS)
    def test_a_variable_has_the_method_of_its_class(self, name):
        variable = tf.Variable([1.0])
        method = getattr(variable, name).__func__
        assert type(variable) is variable_classes()[0]
        assert any(vars(kind).get(name) is method for kind in variable_classes())


class TestSteps:
    """Replaced functions are looked up where we replace them."""

    def spy(self, monkeypatch, owner, name):
        original, calls = getattr(owner, name), []

        def spying(*args, **kwargs):
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, spying)
        return calls

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("reduce_values", ["values", "sample_weight", "reduction"]),
            ("apply_mask", ["sample_weight", "mask", "dtype", "reduction"]),
            ("scale_loss_for_distribution", ["value"]),
            ("unscale_loss_for_distribution", ["value"]),
        ],
    )
    def test_losses_take_what_we_give(self, name, expected):
        assert parameters(getattr(LOSSES, name)) == expected

    def test_a_loss_reduces_its_values_there(self, monkeypatch):
        calls = self.spy(monkeypatch, LOSSES, "reduce_values")
        keras.losses.MeanSquaredError()(targets(3), targets(3))
        assert calls

    def test_a_loss_applies_its_mask_there(self, monkeypatch):
        calls = self.spy(monkeypatch, LOSSES, "apply_mask")
        predicted = tf.constant(targets(3))
        importlib.import_module("keras.src.backend.common.masking").set_keras_mask(
            predicted, tf.constant([True, False, True])
        )
        keras.losses.MeanSquaredError()(targets(3), predicted)
        assert calls

    def test_synchronized_moments_are_computed_there(self, monkeypatch):
        calls = self.spy(monkeypatch, NN, "_compute_moments_sync")
        assert parameters(NN.moments)[:4] == ["x", "axes", "keepdims", "synchronized"]
        NN.moments(tf.constant(features(4)), axes=[0], synchronized=True)
        assert calls

    def test_a_layer_asks_there_for_its_moments(self, monkeypatch):
        assert parameters(keras.layers.BatchNormalization._moments) == ["self", "inputs", "mask"]
        calls = self.spy(monkeypatch, keras.layers.BatchNormalization, "_moments")
        layer = keras.layers.BatchNormalization()
        layer(tf.constant(features(4)), training=True)
        assert calls
        mean, variance = layer._moments(tf.constant(features(4)), None)
        assert mean.shape == variance.shape == layer.moving_mean.shape

    @pytest.mark.parametrize(
        ("name", "draw"),
        [
            ("uniform_v2", lambda: keras.layers.Dropout(0.5)(tf.ones([2, 2]), training=True)),
            ("uniform_v2", lambda: keras.random.uniform((2,))),
            ("uniform_int_v2", lambda: tf.random.stateless_uniform((2,), (1, 2), 0, 9, tf.int32)),
            (
                "uniform_full_int_v2",
                lambda: tf.random.stateless_uniform((2,), (1, 2), None, None, tf.int32),
            ),
            ("normal_v2", lambda: keras.random.normal((2,))),
            ("normal_v2", lambda: tf.random.get_global_generator().normal((2,))),
            ("gamma_v3", lambda: keras.random.gamma((2,), 1.0)),
            ("gamma_v3", lambda: keras.random.beta((2,), 1.0, 1.0)),
        ],
    )
    def test_stateless_draws_pass_one_function(self, name, draw, monkeypatch):
        module = importlib.import_module("tensorflow.python.ops.gen_stateless_random_ops_v2")
        calls = self.spy(monkeypatch, module, f"stateless_random_{name}")
        draw()
        assert calls

    def test_a_shuffle_from_a_seed_passes_one_function(self, monkeypatch):
        module = importlib.import_module("tensorflow.python.ops.gen_stateless_random_ops_v2")
        calls = self.spy(monkeypatch, module, "stateless_shuffle")
        tf.random.experimental.stateless_shuffle([1, 2], (1, 2))
        assert calls

    @pytest.mark.parametrize(
        ("name", "draw"),
        [
            ("multinomial", lambda: keras.random.categorical(tf.zeros([2, 3]), 4)),
            ("random_binomial", lambda: keras.random.binomial((2,), 3.0, 0.5)),
            ("random_poisson", lambda: tf.random.stateless_poisson((2,), (1, 2), 3.0)),
            (
                "parameterized_truncated_normal",
                lambda: tf.random.stateless_parameterized_truncated_normal((2,), (1, 2)),
            ),
        ],
    )
    def test_draws_from_a_seed_pass_one_function(self, name, draw, monkeypatch):
        module = importlib.import_module("tensorflow.python.ops.gen_stateless_random_ops")
        calls = self.spy(monkeypatch, module, f"stateless_{name}")
        draw()
        assert calls

    @pytest.mark.parametrize(
        ("name", "draw"),
        [
            ("random_standard_normal", lambda: tf.random.normal((2,))),
            ("random_uniform", lambda: tf.random.uniform((2,))),
            ("random_uniform", lambda: tf.nn.dropout(tf.ones([2, 2]), 0.5)),
            ("random_uniform_int", lambda: tf.random.uniform((2,), maxval=9, dtype=tf.int32)),
            ("truncated_normal", lambda: tf.random.truncated_normal((2,))),
            ("random_gamma", lambda: tf.random.gamma((2,), 1.0)),
            ("random_poisson_v2", lambda: tf.random.poisson((2,), 1.0)),
            ("multinomial", lambda: tf.random.categorical(tf.zeros([2, 3]), 4)),
            ("random_shuffle", lambda: tf.random.shuffle([1, 2])),
        ],
    )
    def test_draws_with_a_state_pass_one_function(self, name, draw, monkeypatch):
        module = importlib.import_module("tensorflow.python.ops.gen_random_ops")
        calls = self.spy(monkeypatch, module, name)
        draw()
        assert calls

    def test_a_generator_draws_binomial_numbers_there(self, monkeypatch):
        module = importlib.import_module("tensorflow.python.ops.gen_stateful_random_ops")
        calls = self.spy(monkeypatch, module, "stateful_random_binomial")
        tf.random.Generator.from_seed(1).binomial((2,), 3.0, 0.5)
        assert calls

    def test_a_tape_says_what_it_watches(self):
        record = importlib.import_module("tensorflow.python.eager.record")
        constant, variable = tf.ones([2]), tf.Variable([1.0, 2.0])
        assert not record.should_record_backprop([constant])
        with tf.GradientTape():
            assert not record.should_record_backprop([constant])
            assert record.should_record_backprop([2 * variable])

    def test_a_variable_draws_its_initial_value_there(self, monkeypatch):
        calls = self.spy(monkeypatch, keras.Variable, "_initialize")
        keras.layers.Dense(2).build((None, 3))
        assert len(calls) == 2

    def test_a_generator_is_advanced_there(self, monkeypatch):
        calls = self.spy(monkeypatch, tf.random.Generator, "_prepare_key_counter")
        tf.random.Generator.from_seed(1).uniform((2,))
        assert calls

    def test_moving_statistics_and_metrics_are_assigned_through_the_variable(self, monkeypatch):
        calls = self.spy(monkeypatch, keras.Variable, "assign")
        keras.layers.BatchNormalization()(tf.constant(features(4)), training=True)
        assert len(calls) >= 2
        before = len(calls)
        keras.metrics.Mean().update_state(1.0)
        assert len(calls) >= before + 2

    def test_the_loss_of_a_batch_is_one_value_of_a_mean(self, monkeypatch):
        calls = self.spy(monkeypatch, keras.metrics.Mean, "update_state")
        small_model(metrics=()).evaluate(features(4), targets(4), verbose=0)
        assert calls

    def test_the_state_of_seeds_is_known_by_its_path(self):
        layer = keras.layers.Dropout(0.5)
        layer.build((None, 2))
        assert "seed_generator_state" in layer.seed_generator.state.path

    def test_an_activity_regularizer_is_called_with_a_batch_in_one_of_two_ways(self):
        layer = keras.layers.Dense(1, kernel_initializer="ones", activity_regularizer=tf.reduce_sum)
        layer(tf.ones([4, 2]))
        (loss,) = layer.losses
        divides = "batch_size" in inspect.getsource(keras.layers.Layer.__call__)
        assert float(loss) == (2.0 if divides else 8.0)


class TestCallbacks:
    def test_a_backup_keeps_its_paths_where_we_move_them(self, tmp_path):
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        paths = {name: v for name, v in vars(backup).items() if str(tmp_path) in str(v)}
        assert sorted(paths) == [
            "_prev_training_metadata_path",
            "_prev_weights_path",
            "_training_metadata_path",
            "_weights_path",
            "backup_dir",
        ]

    def test_tensorboard_makes_its_paths_of_log_dir_when_it_gets_its_model(self, tmp_path):
        board = keras.callbacks.TensorBoard(tmp_path, profile_batch=2)
        assert board._should_trace
        assert [n for n, v in vars(board).items() if str(tmp_path) in str(v)] == ["log_dir"]

    def test_tensorboard_says_where_we_look_what_it_has_under_way(self, tmp_path):
        board = keras.callbacks.TensorBoard(tmp_path, profile_batch=1)
        board.set_model(small_model())
        board.on_train_begin()
        assert not board._is_tracing
        board.on_train_batch_begin(0)
        assert board._is_tracing
        assert board._profiler_started
        board.on_train_batch_end(0)
        assert not board._is_tracing

    def test_savers_count_batches_where_we_look(self, tmp_path):
        saves = keras.callbacks.ModelCheckpoint(tmp_path / "{batch}.keras", save_freq=5)
        saves.set_model(small_model())
        saves.on_epoch_begin(0)
        for batch in range(3):
            saves.on_train_batch_end(batch)
        assert saves._batches_seen_since_last_saving == 3
        saves.on_epoch_begin(1)
        saves.on_train_batch_end(0)
        assert saves._batches_seen_since_last_saving == 4

    @pytest.mark.parametrize("name", ["backup_and_restore", "tensorboard"])
    def test_callbacks_write_small_files_through_a_module_of_theirs(self, name):
        module = importlib.import_module(f"keras.src.callbacks.{name}")
        assert parameters(module.file_utils.File) == ["path", "mode"]
        assert parameters(module.file_utils.copy) == ["src", "dst"]
        assert "file_utils.File(" in inspect.getsource(module)

    def test_a_learning_rate_is_a_variable_unless_it_is_a_schedule(self):
        schedule = keras.optimizers.schedules.CosineDecay(0.1, 3)
        assert isinstance(keras.optimizers.SGD(0.1)._learning_rate, keras.Variable)
        assert keras.optimizers.SGD(schedule)._learning_rate is schedule

    def test_plain_keras_cannot_read_a_replicated_variable_as_a_number(self, mirrored2):
        with mirrored2.scope():
            variable = keras.Variable(3.0)
        with pytest.raises(TypeError, match="MirroredVariable"):
            int(variable)


class TestDistribution:
    def test_a_distributed_spec_lists_its_parts(self, mirrored2):
        whole = tf.data.Dataset.from_tensor_slices(features(8)).batch(4)
        spec = mirrored2.experimental_distribute_dataset(whole).element_spec
        assert [p.shape.as_list() for p in spec._value_specs] == [[None, 4], [None, 4]]


class TestWhatPlainKerasDoes:
    """Why the seam exists. A failure here is good news: some of it can go."""

    def test_it_clips_each_replica_before_it_adds_them_up(self, mirrored2):
        with mirrored2.scope():
            variable, optimizer = (
                keras.Variable([0.0, 0.0]),
                OPTIMIZERS.SGD(1.0, global_clipnorm=1.0),
            )
            optimizer.build([variable])
        gradients = tf.constant([[100.0, 0.0], [0.0, 1.0]])
        on_replicas(mirrored2, lambda g: optimizer.apply([g], [variable]), gradients)
        assert variable.numpy().tolist() == pytest.approx([-1.0, -1.0])

    def test_it_divides_a_loss_by_the_number_of_replicas(self, mirrored3):
        with mirrored3.scope():
            assert float(LOSSES.scale_loss_for_distribution(tf.constant(6.0))) == 2.0
            assert float(LOSSES.unscale_loss_for_distribution(tf.constant(2.0))) == 6.0

    def test_it_weighs_an_uneven_batch_wrongly(self, mirrored2):
        def train(model):
            model.fit(features(7), targets(7), batch_size=4, epochs=3, shuffle=False, verbose=0)
            return values(model.weights)

        expected = train(small_model())
        with mirrored2.scope():
            got = train(small_model())
        assert max(np.max(np.abs(a - b)) for a, b in zip(got, expected, strict=True)) > 1e-3

    @pytest.mark.parametrize(
        "options",
        [
            {"gradient_accumulation_steps": 2},
            pytest.param(
                {"use_ema": True, "ema_overwrite_frequency": 2},
                marks=pytest.mark.skipif(IS_3_16, reason="overwrites without merge_call"),
            ),
        ],
        ids=["accumulation", "ema_overwriting"],
    )
    def test_it_cannot_merge_inside_a_condition(self, mirrored2, options):
        with mirrored2.scope():
            model = small_model(OPTIMIZERS.SGD(0.1, **options))
        with pytest.raises(RuntimeError, match="merge_call"):
            model.fit(features(8), targets(8), batch_size=4, verbose=0)

    def test_it_cannot_run_several_steps_in_one_execution(self, mirrored2):
        with mirrored2.scope():
            model = small_model(steps_per_execution=2)
        with pytest.raises((RuntimeError, ValueError, TypeError, tf.errors.OpError)):
            model.fit(features(8), targets(8), batch_size=4, verbose=0)


def test_how_many_seeds_a_shuffle_has_drawn_is_in_its_state():
    """`phalanx.keras_compat.shuffle_seeds` reads the number there, and sets it."""
    shuffle = tf.data.Dataset.range(9).shuffle(9, seed=1)
    passes = [list(shuffle.as_numpy_iterator()) for _ in range(3)]
    assert seeds_drawn(shuffle) == 6
    set_seeds_drawn(shuffle, 2)
    assert list(shuffle.as_numpy_iterator()) == passes[1]


class TestGeneratorsOfChance:
    """`phalanx.keras_compat.rng` reads them; each must be where it looks."""

    def test_kerass_own_is_found_once_somebody_has_drawn(self):
        keras.random.normal([1])
        before = np.array(keras_generator().state.numpy())
        keras.random.normal([1])
        assert not np.array_equal(before, keras_generator().state.numpy())

    def test_tensorflows_is_found_once_somebody_has_asked(self):
        own = tf.random.get_global_generator()
        assert tensorflow_generator() is own

    def test_the_seed_of_the_launcher_is_kept_as_the_object_it_is(self):
        keras.utils.set_random_seed(LauncherSeed(5))
        assert global_seed() == 5
        assert not is_seeded_by_script()
        keras.utils.set_random_seed(5)
        assert is_seeded_by_script()
        tf.random.set_seed(None)
        assert global_seed() is None
        assert not is_seeded_by_script()


class TestWrittenOnce:
    """What TensorFlow writes goes through the names that are replaced."""

    management = importlib.import_module("tensorflow.python.checkpoint.checkpoint_management")

    def spy(self, monkeypatch, owner, name):
        original, calls = getattr(owner, name), []

        def spying(*args, **kwargs):
            calls.append(args)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, spying)
        return calls

    def test_every_checkpoint_is_written_by_one_method(self, monkeypatch, tmp_path):
        calls = self.spy(monkeypatch, tf.train.Checkpoint, "_write")
        checkpoint = tf.train.Checkpoint(number=tf.Variable(1))
        checkpoint.save(tmp_path / "saved")
        checkpoint.write(tmp_path / "written")
        tf.train.CheckpointManager(checkpoint, tmp_path / "kept", max_to_keep=1).save()
        assert [str(prefix) for _, prefix, *_ in calls] == [
            str(tmp_path / name) for name in ("saved-1", "written", "kept/ckpt-2")
        ]

    def test_its_method_takes_what_we_give(self):
        assert parameters(tf.train.Checkpoint._write) == ["self", "file_prefix", "options"]

    def test_a_manager_touches_files_by_two_functions(self, monkeypatch, tmp_path):
        states = self.spy(monkeypatch, self.management, "update_checkpoint_state_internal")
        deleted = self.spy(monkeypatch, self.management, "_delete_file_if_exists")
        checkpoint = tf.train.Checkpoint(number=tf.Variable(1))
        manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
        manager.save()
        checkpoint.save(tmp_path / "other")
        assert (len(states), len(deleted)) == (3, 0)
        manager.save()
        assert [str(tmp_path / "ckpt-1.index")] in [list(args) for args in deleted]

    def test_callbacks_of_a_checkpoint_are_reported_where_it_is(self):
        execute = importlib.import_module(
            "tensorflow.python.checkpoint.checkpoint"
        )._execute_callbacks
        reported = []
        execute([reported.append, lambda: reported.append("nothing")], "here")
        assert reported == ["here", "nothing"]


class TestDownloads:
    def test_a_file_is_downloaded_through_one_name(self, monkeypatch, tmp_path):
        files = importlib.import_module("keras.src.utils.file_utils")
        monkeypatch.setattr(
            files, "urlretrieve", lambda url, path, hook: Path(path).write_text(url)
        )
        path = keras.utils.get_file("a.txt", "http://nowhere/a.txt", cache_dir=str(tmp_path))
        assert (tmp_path / "datasets" / "a.txt").read_text() == "http://nowhere/a.txt"
        assert path == str(tmp_path / "datasets" / "a.txt")

    def test_it_takes_what_we_look_at(self):
        assert {"fname", "origin", "cache_subdir", "cache_dir"} <= set(
            parameters(keras.utils.get_file)
        )

    def test_keras_says_where_its_cache_is(self):
        home = importlib.import_module("keras.src.backend.config").keras_home()
        assert isinstance(home, str)

    def test_datasets_take_turns_too(self):
        from phalanx.keras_compat.downloads import downloads_take_turns

        mnist = importlib.import_module("keras.src.datasets.mnist")
        original = mnist.get_file
        with downloads_take_turns:
            assert mnist.get_file is keras.utils.get_file is not original
        assert mnist.get_file is keras.utils.get_file is original


def test_a_coordination_service_waits_for_ever_where_a_launcher_watches():
    context = importlib.import_module("tensorflow.python.eager.context").context()
    before = context.coordination_service
    try:
        with no_heartbeat_timeout():
            # As `CollectiveAllReduceExtended` does it: no timeout is given.
            context.configure_coordination_service(
                service_type="standalone", service_leader="", coordinated_jobs=[]
            )
        # A negative difference of two times, as unsigned milliseconds, is less.
        assert context.coordination_service.heartbeat_timeout_in_ms > 2**64 // 1000
        context.configure_coordination_service(service_type="standalone")
        assert context.coordination_service.heartbeat_timeout_in_ms == 0
    finally:
        context._coordination_service_config = before
    source = inspect.getsource(
        importlib.import_module("tensorflow.python.distribute.collective_all_reduce_strategy")
    )
    assert "context.context().configure_coordination_service(" in source


def test_a_launcher_of_collectives_can_be_made_next_to_another():
    utils = importlib.import_module("tensorflow.python.distribute.cross_device_utils")
    launcher = inspect.signature(utils.CollectiveReplicaLauncher.__init__)
    assert list(launcher.parameters)[1:] == [
        "group_key", "group_size", "collective_keys", "device", "options",
    ]  # fmt: skip
    source = inspect.getsource(utils.CollectiveReplicaLauncher.__init__)
    for name in ("_group_key", "_group_size", "_collective_keys", "_device", "_options"):
        assert f"self.{name} = " in source
    keys = utils.CollectiveKeys()
    first, second = keys.get_group_key(["CPU:0"]), keys._get_new_group_key(["CPU:0"])
    assert first != second
    # Keys are dealt out in the order of calls, in each group apart.
    assert [keys.get_instance_key(group, "CPU:0") for group in (first, first, second)] == [
        100, 101, 100,
    ]  # fmt: skip


def test_the_launcher_of_collectives_gathers_tensors_of_equal_shapes():
    """`TensorFlowCollectives.gather_equal`; its arguments, and that it is there."""
    from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher

    parameters = inspect.signature(CollectiveReplicaLauncher._all_gather).parameters
    assert list(parameters) == ["self", "input_tensor", "options"]


class TestDatasetsThatAreRebuilt:
    def test_a_map_can_be_called_on_other_elements(self):
        doubled = tf.data.Dataset.range(3).map(lambda n: (n * 2, {"n": n}), num_parallel_calls=2)
        (wrapper,) = doubled._functions()
        structure = importlib.import_module("tensorflow.python.data.util.structure")
        flat = structure.to_tensor_list(tf.TensorSpec([], tf.int64), tf.constant(4, tf.int64))
        results = wrapper.function(*flat)
        made = structure.from_compatible_tensor_list(wrapper.output_structure, results)
        assert (int(made[0]), int(made[1]["n"])) == (8, 4)
        assert int(doubled._num_parallel_calls) == 2
        assert len(wrapper.function.graph.captures) == 0

    def test_steps_have_what_they_were_given(self):
        numbers = tf.data.Dataset.range(9)
        assert int(numbers.repeat(2)._count) == 2
        assert int(numbers.take(3)._count) == int(numbers.skip(3)._count) == 3
        shard = numbers.shard(3, 1)
        assert (int(shard._num_shards), int(shard._index)) == (3, 1)
        known = numbers.apply(tf.data.experimental.assert_cardinality(9))
        assert int(known._expected_cardinality) == 9
        assert tf.data.Dataset.zip({"a": numbers})._datasets == {"a": numbers}
        padded = numbers.padded_batch(2, padded_shapes=[], padding_values=None)
        assert padded._padded_shapes.shape == [0]
        assert int(padded._padding_values) == 0

    def test_which_operations_keep_state(self):
        registry = importlib.import_module("tensorflow.python.framework.op_def_registry")
        assert registry.get("AssignVariableOp").is_stateful
        assert registry.get("RandomUniform").is_stateful
        assert registry.get("EagerPyFunc").is_stateful
        assert not registry.get("DecodeJpeg").is_stateful
        assert registry.get("no such operation") is None

    def test_a_shuffle_shares_its_seeds_with_a_copy(self):
        tf.random.set_seed(5)
        shuffle = tf.data.Dataset.range(30).shuffle(30, seed=1)
        orders = [[int(n) for n in shuffle] for _ in range(3)]
        tf.random.set_seed(5)
        shuffle = tf.data.Dataset.range(30).shuffle(30, seed=1)
        again = rebuild(transformations(shuffle), [tf.data.Dataset.range(30)])
        assert [[int(n) for n in one] for one in (shuffle, again, shuffle)] == orders
        assert orders[0] != orders[1]
