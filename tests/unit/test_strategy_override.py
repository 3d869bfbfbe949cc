"""Canaries: they fail on the day TensorFlow or Keras changes what the override stands on."""

import keras
import pytest
import tensorflow as tf

from phalanx.errors import IncompatibleDependencyError
from phalanx.worker import strategy_override

V1 = tf.compat.v1.distribute
OWN = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.experimental.MultiWorkerMirroredStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
    V1.MirroredStrategy,
    V1.experimental.CentralStorageStrategy,
    V1.experimental.MultiWorkerMirroredStrategy,
)


@pytest.fixture
def adopted(mirrored2):
    with strategy_override.adopt(mirrored2):
        yield mirrored2


@pytest.fixture
def in_force(mirrored2):
    tf.distribute.experimental_set_strategy(mirrored2)
    yield mirrored2
    tf.distribute.experimental_set_strategy(None)


@pytest.mark.parametrize("cls", OWN)
def test_a_scripts_own_strategy_is_the_launchers(adopted, cls):
    assert cls() is adopted
    assert adopted.num_replicas_in_sync == 2


def test_its_arguments_are_taken_and_unused(adopted):
    assert tf.distribute.MirroredStrategy(["CPU:0"]) is adopted
    assert tf.distribute.MirroredStrategy(devices=["CPU:0"]) is adopted
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1)
    assert tf.distribute.MultiWorkerMirroredStrategy(communication_options=options) is adopted


@pytest.mark.parametrize("cls", [tf.distribute.OneDeviceStrategy, V1.OneDeviceStrategy])
def test_a_strategy_of_one_device_is_the_launchers(adopted, cls):
    assert cls("/cpu:0") is adopted
    assert cls(device="/cpu:0") is adopted


def test_no_strategy_of_tensorflows_is_forgotten():
    places = [tf.distribute, tf.distribute.experimental, V1, V1.experimental]
    made = {
        value
        for place in places
        for name in dir(place)
        if name.endswith("Strategy") and isinstance(value := getattr(place, name), type)
    }
    left = {cls.__name__ for cls in made - strategy_override.strategies_of_scripts()}
    tpus = {"TPUStrategy", "TPUStrategyV1", "TPUStrategyV2"}
    assert left - tpus == {"Strategy", "StrategyV1"}  # what the others are made from


def test_classes_stay_classes(adopted):
    assert isinstance(adopted, tf.distribute.MirroredStrategy)
    assert not isinstance(adopted, tf.distribute.MultiWorkerMirroredStrategy)


def test_a_users_subclass_makes_its_own(adopted):
    class Mine(tf.distribute.MirroredStrategy):
        pass

    mine = Mine(["CPU:0"])
    assert mine is not adopted
    assert mine.num_replicas_in_sync == 1


def test_it_is_taken_back(mirrored2):
    strategy_override.adopt(mirrored2).close()
    own = tf.distribute.MirroredStrategy(["CPU:0"])
    assert own is not mirrored2
    assert own.num_replicas_in_sync == 1
    assert tf.distribute.MultiWorkerMirroredStrategy() is not mirrored2


def clear_sessions():
    import tf_keras

    return [
        keras.backend.clear_session,
        keras.utils.clear_session,
        tf_keras.backend.clear_session,
        tf.compat.v1.reset_default_graph,
    ]


@pytest.mark.parametrize("which", range(4))
def test_clear_session_ends_distribution_without_us(in_force, which):
    clear_sessions()[which]()
    assert tf.distribute.get_strategy() is not in_force


@pytest.mark.parametrize("which", range(4))
def test_clear_session_keeps_the_strategy(in_force, which):
    with strategy_override.survive_clear_session(in_force):
        for _ in range(2):
            clear_sessions()[which]()
            assert tf.distribute.get_strategy() is in_force


def test_clear_session_inside_a_scope(in_force):
    with strategy_override.survive_clear_session(in_force):
        with in_force.scope():
            keras.backend.clear_session()
            inside = tf.Variable(1.0)
        outside = tf.Variable(1.0)
    for variable in (inside, outside):
        assert len(in_force.experimental_local_results(variable)) == 2


def test_clear_session_is_taken_back(in_force):
    before = tf.compat.v1.reset_default_graph
    strategy_override.survive_clear_session(in_force).close()
    assert tf.compat.v1.reset_default_graph is before


@pytest.mark.parametrize(
    "make", [lambda: tf.distribute.MirroredStrategy(["CPU:0"]), OWN[1], tf.distribute.get_strategy]
)
def test_a_script_reads_its_task(make, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = make()
    if strategy is tf.distribute.get_strategy():  # It outlives the test.
        monkeypatch.setattr(strategy.extended, "_cluster_resolver", None, raising=False)
    strategy_override.ensure_cluster_resolver(strategy)
    resolver = strategy.cluster_resolver
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert len(resolver.cluster_spec().as_dict()["worker"]) == 1


def test_a_strategy_made_by_a_lone_script_has_its_task_too():
    with strategy_override.complete_script_strategies():
        own = tf.distribute.MirroredStrategy(["CPU:0"])
    assert own.cluster_resolver.task_id == 0
    assert tf.distribute.MirroredStrategy(["CPU:0"]).cluster_resolver is None


def test_a_resolver_kept_elsewhere_is_noticed():
    class Moved:
        cluster_resolver = None
        extended = type("Extended", (), {})()

    with pytest.raises(IncompatibleDependencyError, match="_cluster_resolver"):
        strategy_override.ensure_cluster_resolver(Moved())
