"""What a replay says, as a page; and which step it takes, and how it ends."""

import json

import keras
import numpy as np
import pytest
from replays import Of, captured_of, head, replayed, rows

from phalanx.checkpoint.step_capture import (
    CapturedPart,
    CaptureInfo,
    StepCapture,
    captures_in,
    write_captured,
)
from phalanx.diagnostics.debug.diagnosis import Cause
from phalanx.diagnostics.debug.nonfinite_rows import Range
from phalanx.diagnostics.debug.replay import Replay, ReplayResult, Sample
from phalanx.diagnostics.debug.replay_main import chosen, format_growth, in_words, main
from phalanx.errors import ConfigurationError


def model_of(*layers):
    model = keras.Sequential([keras.Input((4,)), *layers, head()], name="m")
    model.compile("sgd", "mse")
    return model


def write(run, model, x, *, step=3, rank=1, config=True):
    base = captured_of(model, x)
    about = StepCapture(**{**vars(base.about), "step": step, "rank": rank})
    written = keras.saving.serialize_keras_object(model) if config else None
    return write_captured(
        run / "captures", CaptureInfo(**{**vars(base), "about": about, "config": written})
    )


PARTS = tuple(CapturedPart(replica=2 + i, count=8, start=8 * i) for i in range(2))
GIVEN = Range(least=1.0, greatest=2.0, nonfinite=0, size=32)
HOLED = Range(least=0.0, greatest=1e30, nonfinite=4, size=32)
GROWTH = (("m/a", 1.0), ("m/norm", 2e9))


def found(**fields):
    return ReplayResult(part=PARTS[1], growth=GROWTH, **fields)


def samples(count, row=None, place=""):
    return tuple(
        Sample(index=i, in_batch=8 + i, row=row and row + i, place=place) for i in range(count)
    )


SAID = {
    "bad data": found(
        phase="data", layer="m/head", variable="m/head/kernel", given=(HOLED,), dtype="float32",
        samples=samples(1, row=103), cause=Cause(kind="data", summary="why", remedy="what to do"),
    ),
    "bad data that shows nowhere": found(phase="data", given=(HOLED,), samples=samples(1)),
    "bad weights": found(phase="weights", layer="m/head", variable="m/head/kernel"),
    "an operation": found(
        phase="forward", layer="m/odd", operation="Mul", variable="m/first/kernel",
        given=(GIVEN, HOLED), dtype="float16", samples=samples(2, place="a.csv:6"),
        cause=Cause(kind="float16", summary="why", remedy="what to do"),
    ),
    "no operation, and no sample on its own": found(phase="backward"),
    "many samples": found(phase="forward", layer="m/odd", samples=samples(14, row=100)),
    "all is finite this time": found(),
}  # fmt: skip


def about(*, parts=PARTS, is_bad=True):
    parts = tuple(CapturedPart(**{**vars(part), "is_bad": is_bad}) for part in parts)
    return StepCapture(rank=1, step=3, replicas=4, total=32, variable="", policy="raise",
                        loss_scale=1.0, parts=parts)  # fmt: skip


def test_the_words_for_what_was_found(snapshot):
    page = []
    for name, each in SAID.items():
        page += [f"Of {name}:", "", *in_words(each, about()), ""]
    page += ["Of a worker of one replica, where only the sum over the replicas was not finite:", ""]
    page += [*in_words(found(), about(parts=PARTS[1:], is_bad=False)), ""]
    page += ["What grew:", "", *format_growth(GROWTH)]
    snapshot("replay", "\n".join(page))


def test_bad_data_and_bad_weights_are_distinguished():
    data = replayed([head()], rows(3, np.inf))
    assert (data.phase, data.layer, data.variable) == ("data", "m/head", "m/head/kernel")
    assert data.given == (Range(least=1.0, greatest=2.0, nonfinite=4, size=32),)
    weights = replayed([head()], rows(), weights=[np.full((4, 1), np.nan), np.zeros(1)])
    assert (weights.phase, weights.layer) == ("weights", "m/head")
    assert weights.variable == "m/head/kernel"


def test_all_samples_that_went_wrong_are_found():
    many = np.ones((20, 4), np.float32)
    many[1:15] = 0.0
    model = model_of(Of(keras.ops.log, name="odd"))
    wrong = Replay(model, captured_of(model, many, count=20)).run().samples
    assert [(each.index, each.in_batch) for each in wrong] == [(i, 8 + i) for i in range(1, 15)]
    assert [each.row for each in wrong] == [*range(101, 108), *[None] * 7]


def test_variables_have_the_names_of_the_training():
    """Keras numbers layers by the process: here they may have others."""
    model = model_of(Of(lambda x: x * 1e30 * 1e30, name="odd"))
    base = captured_of(model, rows())
    paths = {name: f"there/{path}" for name, path in base.paths.items()}
    found = Replay(model, CaptureInfo(**{**vars(base), "paths": paths})).run()
    assert found.variable == "there/m/head/kernel"


def test_the_worker_whose_samples_go_wrong_is_found(tmp_path, capsys):
    model = model_of()
    write(tmp_path, model, rows(), rank=0)
    write(tmp_path, model, rows(3, np.inf), rank=1)
    write(tmp_path, model, rows(), rank=2)
    assert main([str(tmp_path), "", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["step"]["rank"], said["found"]["phase"]) == (1, "data")


def test_the_earliest_step_is_taken_or_the_one_that_is_named(tmp_path):
    model = model_of()
    for step, rank in ((10, 0), (9, 1), (9, 0)):
        write(tmp_path, model, rows(), step=step, rank=rank)
    (tmp_path / "captures" / ".worker-2-step-1.part").mkdir()
    names = ["worker-0-step-9", "worker-1-step-9", "worker-0-step-10"]
    assert [path.name for path in captures_in(tmp_path)] == names
    assert [path.name for path in chosen(tmp_path, "")] == names[:2]
    assert [path.name for path in chosen(tmp_path, names[2])] == names[2:]
    with pytest.raises(ConfigurationError, match=f"named 'x'; found {', '.join(names)}"):
        chosen(tmp_path, "x")
    with pytest.raises(ConfigurationError, match="found none"):
        chosen(tmp_path / "captures", "")


def test_the_exit_code_says_whether_it_went_wrong_again(tmp_path, capsys):
    directory = write(tmp_path, model_of(), rows(3, np.inf))
    assert main([str(tmp_path), "", "text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(directory)
    assert any(line.startswith("first wrong: the data") for line in lines)
    assert "largest absolute value after each layer:" in lines
    assert main([str(directory), "", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"]["phase"] == "data"
    write(tmp_path, model_of(), rows())
    assert main([str(tmp_path), "", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["found"]["phase"] == ""


def test_what_cannot_be_read_is_refused(tmp_path, capsys):
    directory = write(tmp_path, model_of(), rows(), config=False)
    assert main([str(tmp_path), "", "text"]) == 2
    assert "holds no model" in capsys.readouterr().err
    (directory / "weights.npz").write_bytes(b"cut")
    assert main([str(tmp_path), "", "text"]) == 2
    assert str(directory) in capsys.readouterr().err
