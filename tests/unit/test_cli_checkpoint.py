"""`phalanx checkpoint`: what it prints and removes, and how it exits."""

import numpy as np
import pytest
from typer.testing import CliRunner

from phalanx.checkpoint.history import steps_in
from phalanx.checkpoint.reader import manifest_of
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import ShardWriter, Snapshot
from phalanx.cli.app import app
from phalanx.errors import ConfigurationError


@pytest.fixture
def directory(tmp_path):
    for step, loss in ((10, 0.5), (20, 0.25), (30, 0.75)):
        taken = Snapshot(
            step=step, epoch=0, arrays={"w": np.ones((5, 5))}, metrics={"val_loss": loss}
        )
        ShardWriter(folder=StorageDir.at(tmp_path)).write(taken)
    return tmp_path


def checkpoint(*words):
    result = CliRunner().invoke(app, ["checkpoint", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def damage(directory, step):
    folder = StorageDir.at(directory)
    place = folder / f"step-{step:08d}"
    shard = manifest_of(folder, step).shards[0].file
    place.write(shard, place.read(shard)[:-1])


def test_list_shows_each(directory):
    shown = checkpoint("list", directory).stdout
    assert [word in shown for word in ("10", "20", "30", "val_loss: 0.25")] == [True] * 4


def test_verify_exits_with_1_where_one_is_damaged(directory):
    assert checkpoint("verify", directory).exit_code == 0
    damage(directory, 20)
    result = checkpoint("verify", directory)
    assert result.exit_code == 1
    assert "step 10: whole" in result.stderr
    assert "step 20: In the checkpoint" in result.stderr


def test_prune_keeps_the_newest_and_the_best(directory):
    result = checkpoint("prune", directory, "--max-to-keep", 1, "--best-metric", "val_loss:min")
    assert "removed step-00000010" in result.stderr
    assert steps_in(StorageDir.at(directory)) == [20, 30]


def test_an_empty_directory_is_said(tmp_path):
    assert "no checkpoint in" in checkpoint("list", tmp_path).stderr
    assert checkpoint("verify", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    "words", [["--max-to-keep", 0], ["--best-metric", "val_loss"], ["--best-metric", "a:least"]]
)
def test_bad_options_remove_nothing(words, directory):
    with pytest.raises(ConfigurationError):
        checkpoint("prune", directory, *words)
    assert steps_in(StorageDir.at(directory)) == [10, 20, 30]
