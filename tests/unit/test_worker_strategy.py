import pytest
import tensorflow as tf

import phalanx
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import OptionError
from phalanx.worker import strategy as home


@pytest.fixture(autouse=True)
def fresh(monkeypatch, mirrored2):
    """A process that has no strategy yet; the fixture has split its CPU."""
    monkeypatch.setattr(home, "_made", None)
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_alone_it_is_tensorflows_default():
    made = phalanx.strategy()
    assert made is tf.distribute.get_strategy()
    assert phalanx.strategy("single") is made


def test_mirrored_uses_all_logical_cpus_and_is_made_once():
    made = phalanx.strategy("mirrored")
    assert isinstance(made, tf.distribute.MirroredStrategy)
    assert made.num_replicas_in_sync == len(tf.config.list_logical_devices("CPU")) > 1
    assert phalanx.strategy() is phalanx.strategy("mirrored") is made


def test_another_one_is_refused():
    phalanx.strategy("single")
    with pytest.raises(OptionError, match=r"'mirrored' strategy.*under 'single' already"):
        phalanx.strategy("mirrored")


def test_an_unknown_name():
    with pytest.raises(OptionError, match="found 'ring'"):
        phalanx.strategy("ring")


def test_the_launchers_word_stands(caplog):
    caplog.set_level("INFO", logger="phalanx")
    made = home.make_for_worker(WorkerSpec(rank=0, world_size=1, strategy="mirrored"))
    assert phalanx.strategy("multiworker") is made
    assert "phalanx run decides: mirrored, where the script asked for multiworker" in caplog.text
    assert "because phalanx run --strategy mirrored" in caplog.text


def test_the_launcher_counts_devices():
    home.make_for_worker(WorkerSpec(rank=0, world_size=1))
    assert home.made_kind() == "mirrored"
