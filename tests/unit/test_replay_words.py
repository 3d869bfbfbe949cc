"""What a replay says: of its samples, inputs and weights, and which step it takes."""

import json

import keras
import numpy as np
import pytest
from replays import Of, captured_of, head, replayed, rows

from phalanx.debug.replay import Replay
from phalanx.debug.replay_run import chosen, main
from phalanx.debug.words import in_words
from phalanx.errors import OptionError
from phalanx.state.captured import Captured, CapturedStep, captures_in, write_captured


def model_of(*layers):
    model = keras.Sequential([keras.Input((4,)), *layers, head()], name="m")
    model.compile("sgd", "mse")
    return model


def said_of(found, x):
    return in_words(found, captured_of(keras.Sequential(), x).about)


def write(run, model, x, *, step=3, rank=1, config=True):
    base = captured_of(model, x)
    about = CapturedStep(**{**vars(base.about), "step": step, "rank": rank})
    written = keras.saving.serialize_keras_object(model) if config else None
    return write_captured(
        run / "captures", Captured(**{**vars(base), "about": about, "config": written})
    )


def test_bad_data_and_bad_weights_are_named_as_such():
    x = rows(3, np.inf)
    said = said_of(replayed([head()], x), x)
    assert "first wrong: the data; it shows in m/head" in said
    assert "  was given: 32 numbers from 1 to 2, 4 not finite" in said
    assert "variable: the gradient of m/head/kernel" in said
    found = replayed([head()], rows(), weights=[np.full((4, 1), np.nan), np.zeros(1)])
    said = said_of(found, rows())
    assert "first wrong: the weights; it shows in m/head" in said
    assert "variable: m/head/kernel" in said


def test_a_few_of_many_samples_are_named():
    many = np.ones((20, 4), np.float32)
    many[1:15] = 0.0
    model = model_of(Of(keras.ops.log, name="odd"))
    captured = captured_of(model, many, count=20)
    said = in_words(Replay(model, captured).run(), captured.about)
    (line,) = [each for each in said if each.startswith("samples: ")]
    assert line.startswith("samples: 9 of the global batch (sample 101 of the data); 10 of")
    assert line.endswith("16 of the global batch; and 6 more")


def test_variables_have_the_names_of_the_training():
    """Keras numbers layers by the process: here they may have others."""
    model = model_of(Of(lambda x: x * 1e30 * 1e30, name="odd"))
    base = captured_of(model, rows())
    paths = {name: f"there/{path}" for name, path in base.paths.items()}
    found = Replay(model, Captured(**{**vars(base), "paths": paths})).run()
    assert found.variable == "there/m/head/kernel"


def test_the_earliest_step_is_taken_or_the_one_that_is_named(tmp_path):
    model = model_of()
    for step, rank in ((10, 0), (9, 1), (9, 0)):
        write(tmp_path, model, rows(), step=step, rank=rank)
    (tmp_path / "captures" / ".worker-2-step-1.part").mkdir()
    names = ["worker-0-step-9", "worker-1-step-9", "worker-0-step-10"]
    assert [path.name for path in captures_in(tmp_path)] == names
    assert chosen(tmp_path, "").name == names[0]
    assert chosen(tmp_path, names[2]).name == names[2]
    with pytest.raises(OptionError, match=f"named 'x'; found {', '.join(names)}"):
        chosen(tmp_path, "x")
    with pytest.raises(OptionError, match=r"holds no kept step; found none"):
        chosen(tmp_path / "captures", "")


def test_the_exit_code_says_whether_it_went_wrong_again(tmp_path, capsys):
    directory = write(tmp_path, model_of(), rows(3, np.inf))
    assert main([str(tmp_path), "", "text"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{directory}\nstep 3: 8 of the 16 samples")
    assert "largest absolute value after each layer:\n  " in said
    assert main([str(directory), "", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"]["phase"] == "data"
    write(tmp_path, model_of(), rows())
    assert main([str(tmp_path), "", "text"]) == 1
    assert "all is finite this time" in capsys.readouterr().out


def test_what_cannot_be_read_is_refused(tmp_path, capsys):
    directory = write(tmp_path, model_of(), rows(), config=False)
    assert main([str(tmp_path), "", "text"]) == 2
    assert "holds no model" in capsys.readouterr().err
    (directory / "weights.npz").write_bytes(b"cut")
    assert main([str(tmp_path), "", "text"]) == 2
    assert f"The kept step in {directory} cannot be read" in capsys.readouterr().err
