"""What `phalanx predict` has to do: which files, which rows of them, and what is done already."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.cli import predict
from phalanx.cli.app import app
from phalanx.cli.predict import ModelCommand
from phalanx.data.sources.file_kinds import kind_of
from phalanx.errors import ConfigurationError, PhalanxError
from phalanx.prediction.claims import Claims
from phalanx.prediction.input_files import InputFile, find_files
from phalanx.prediction.plan import (
    EVALUATION,
    MANIFEST,
    MODULE,
    RECORDS,
    ModelRequest,
    Part,
    PredictionPlan,
    complete_parts,
    prepare_output,
)


def input_file(name="a", **changed):
    file = InputFile(path=f"/in/{name}.npy", name=name, size=100, version="1", kind=".npy")
    return replace(file, **changed)


def plan(*files, parts=1, **changed):
    request = ModelRequest(model="/m.keras", files=files or (input_file(),), batch_size=8)
    made = PredictionPlan(
        model_sha256="5" * 64, request=request, format="npy", parts_per_file=parts
    )
    return replace(made, **changed)


@given(total=st.integers(0, 2000), batch_size=st.integers(1, 70), of=st.integers(1, 40))
def test_parts_have_every_row_once_and_whole_batches(total, batch_size, of):
    parts = [Part(name="a", file=input_file(), number=number, of=of) for number in range(of)]
    ranges = [part.rows(total, batch_size) for part in parts]
    assert [row for rows in ranges for row in rows] == list(range(total))
    assert all(rows.stop in (total, rows.stop // batch_size * batch_size) for rows in ranges)
    batches = [-(-len(rows) // batch_size) for rows in ranges]
    assert max(batches) - min(batches) <= 1


class Directory:
    """What one process alone can create, without a disk."""

    def __init__(self):
        self.files = {}

    def create(self, name, content):
        is_new = name not in self.files
        self.files.setdefault(name, content)
        return is_new

    def read(self, name):
        return self.files[name]


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    workers=st.integers(1, 4),
    parts=st.integers(1, 3),
    turns=st.randoms(use_true_random=False),
)
def test_each_part_goes_to_one_worker(sizes, workers, parts, turns):
    """Workers take turns in any order; one of them is replaced in between."""
    files = [input_file(f"f{number}", size=size) for number, size in enumerate(sizes)]
    directory = Directory()
    all_parts = plan(*files, parts=parts).parts
    running = {r: Claims(directory, r).take_from(all_parts) for r in range(workers)}
    taken = {rank: [] for rank in running}
    is_replaced = False
    while running:
        rank = turns.choice(sorted(running))
        part = next(running[rank], None)
        if part is None:
            del running[rank]
            continue
        taken[rank].append(part)
        if not is_replaced and turns.random() < 0.3:  # it dies with the part, and comes again
            is_replaced = True
            *done, _ = taken[rank]
            left = [part for part in all_parts if part not in done]
            taken[rank] = done
            running[rank] = Claims(directory, rank).take_from(left)
    found = sorted(part.name for parts in taken.values() for part in parts)
    assert found == sorted(part.name for part in all_parts)


def test_outputs_sort_as_the_rows_do():
    names = [part.name for part in plan(input_file("a"), input_file("b"), parts=12).parts]
    assert names == sorted(names)
    assert names[0] == "a-00000-of-00012"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rows.npy", ".npy"),
        ("a.CSV.gz", ".csv"),
        ("train.tfrecord-00001-of-00004", ".tfrecord"),
        ("train-images-idx3-ubyte.gz", "IDX"),
        ("schema.json", None),
        (".train.tfrecord.index.npz", None),
        ("README", None),
    ],
)
def test_the_kind_of_a_file_is_in_its_name(name, kind):
    assert kind_of(f"/some/{name}") == kind


@pytest.fixture
def files(tmp_path):
    def write(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"1234")
        return str(tmp_path)

    return write


def names_of(given, *, has_source=False):
    return [one.name for one in find_files(given, has_source=has_source)]


def test_files_of_a_directory(files):
    place = files("in/b.csv.gz", "in/a.csv", "in/schema.json", "in/.hidden.csv", "in/deep/c.csv")
    assert names_of(f"{place}/in") == ["a", "b"]
    assert names_of(f"{place}/in/b.csv.gz") == ["b"]
    assert names_of(f"{place}/in/**/*.csv") == ["a", "deep-c"]
    assert names_of(f"{place}/in", has_source=True) == ["a", "b"]


def test_a_name_with_brackets(files):
    place = files("run[3]/a[1].csv", "run[3]/b.csv")
    assert names_of(f"{place}/run[3]/a[1].csv") == ["a[1]"]
    assert names_of(f"{place}/run[3]") == ["a[1]", "b"]


def test_numbers_of_tfrecords_stay(files):
    place = files(*(f"t.tfrecord-0000{n}-of-00002" for n in range(2)), "schema.json")
    assert names_of(place) == ["t-00000-of-00002", "t-00001-of-00002"]


def test_other_files_are_for_a_source(files):
    place = files("a.wav", "b.wav")
    with pytest.raises(ConfigurationError, match=r"found none at .* --source"):
        find_files(place, has_source=False)
    assert names_of(place, has_source=True) == ["a", "b"]


def test_no_file_of_a_directory_is_left_out_where_a_source_reads_it(files):
    place = files("in/a.wav", "in/b.wav", "in/labels.csv", "in/.hidden")
    with pytest.raises(ConfigurationError, match=r"found labels\.csv and a\.wav at .* a pattern"):
        find_files(f"{place}/in", has_source=True)
    assert names_of(f"{place}/in/*.wav", has_source=True) == ["a", "b"]
    assert names_of(f"{place}/in/*", has_source=True) == ["a", "b", "labels"]
    assert names_of(f"{place}/in") == ["labels"]


def test_a_directory_of_images_is_one_input(files):
    place = files("in/cat/2.png", "in/cat/1.JPG", "in/dog/3.png", "in/notes.txt")
    (one,) = find_files(f"{place}/in", has_source=False)
    assert (one.name, one.kind, one.size) == ("in", "images", 12)
    files("in/dog/4.png")
    (other,) = find_files(f"{place}/in", has_source=False)
    assert other.version != one.version


def test_one_kind_at_a_time(files):
    place = files("a.csv", "b.npy")
    with pytest.raises(ConfigurationError, match=r"found \.csv and \.npy"):
        find_files(place, has_source=False)


def test_two_inputs_of_one_name():
    with pytest.raises(ConfigurationError, match="would both be 'a'"):
        plan(input_file(), input_file(path="/in/a.csv"))


@pytest.fixture
def folder(tmp_path):
    return StorageDir.at(tmp_path / "out")


def finish(folder, name, rows=3):
    folder.write(f"{name}.npy", b"numbers")
    record = {"file": f"{name}.npy", "rows": rows}
    (folder / RECORDS).write(f"{name}.json", json.dumps(record).encode())


def test_a_plan_comes_back_from_its_manifest(folder):
    made = plan(input_file("a"), input_file("b"), parts=2)
    prepare_output(folder, made, restart=False)
    assert PredictionPlan.read(folder) == made


def test_a_part_is_complete_with_its_output_and_its_record(folder):
    finish(folder, "a")
    finish(folder, "b")
    folder.write("c.npy", b"no record yet")
    folder.remove("b.npy")
    assert list(complete_parts(folder)) == ["a"]


DIFFERENT = {
    "the model": plan(model_sha256="6" * 64),
    "the input": plan(input_file(version="2")),
    "--format": plan(format="csv"),
    "--parts": plan(parts=2),
    "--batch-size": replace(plan(), request=replace(plan().request, batch_size=9)),
    "--map": replace(plan(), request=replace(plan().request, map="m:f")),
    "--import": replace(plan(), request=replace(plan().request, imports=("m",))),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_prediction_is_refused_and_both_values_named(folder, what):
    prepare_output(folder, plan(), restart=False)
    finish(folder, "a")
    with pytest.raises(
        ConfigurationError, match=f"predictions with {what} .*; asked for "
    ) as error:
        prepare_output(folder, DIFFERENT[what], restart=False)
    before, now = str(error.value).split("asked for ")
    assert before.split(what)[1].strip("; ") != now.split(". Give")[0]
    assert PredictionPlan.read(folder) == plan()


def test_the_same_model_elsewhere_is_the_same(folder):
    prepare_output(folder, plan(), restart=False)
    moved = replace(plan().request, model="/other.keras")
    prepare_output(folder, replace(plan(), request=moved), restart=False)


def test_restart_removes_what_the_plan_has_made(folder):
    prepare_output(folder, plan(input_file("a"), input_file("b")), restart=False)
    finish(folder, "a")
    folder.write("b.npy", b"no record yet")
    folder.write("c.npy.12345678.part", b"half")
    folder.write("notes.txt", b"the user's")
    prepare_output(folder, plan(input_file("c")), restart=True)
    assert folder.names() == ["notes.txt", MANIFEST]
    assert complete_parts(folder) == {}


def test_restart_works_with_a_damaged_manifest(folder):
    folder.write(MANIFEST, b"{")
    with pytest.raises(ConfigurationError, match=r"Cannot read .*--restart"):
        prepare_output(folder, plan(), restart=False)
    prepare_output(folder, plan(), restart=True)
    assert PredictionPlan.read(folder) == plan()


@pytest.mark.parametrize("restart", [False, True])
def test_the_users_files_are_in_no_danger(folder, restart):
    folder.write("a.npy", b"rows")
    with pytest.raises(ConfigurationError, match=r"must be a new or an empty .* found a\.npy"):
        prepare_output(folder, plan(), restart=restart)
    folder.write(MANIFEST, plan().to_json())
    inside = plan(input_file(path=f"{folder}/a.npy"))
    with pytest.raises(ConfigurationError, match="another directory than that of INPUT"):
        prepare_output(folder, inside, restart=restart)
    assert folder.read("a.npy") == b"rows"


@pytest.fixture
def place(tmp_path, monkeypatch):
    import zipfile

    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("m.keras", "w") as file:
        file.writestr("config.json", "{}")
    (tmp_path / "a.npy").write_bytes(b"1234")
    (tmp_path / "inputs.py").write_text("def rows(paths): ...")
    (tmp_path / "text.keras").write_text("no model")
    with zipfile.ZipFile("arrays.npz", "w") as file:
        file.writestr("x.npy", "")
    with zipfile.ZipFile("compiled.keras", "w") as file:
        file.writestr("config.json", '{"compile_config": {"loss": "mse"}}')
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.keras", "a.npy", "out"], "MODEL must be .* found no such file"),
        (["text.keras", "a.npy", "out"], "MODEL must be .* found something else"),
        (["arrays.npz", "a.npy", "out"], "MODEL must be .* found something else"),
        ([".", "a.npy", "out"], "MODEL must be .* found something else"),
        (["m.keras", "b*.npy", "out"], "INPUT must name files"),
        (["m.keras", "a.npy", "out", "--format", "hdf5"], "--format must be one of npy, csv"),
        (["m.keras", "a.npy", "out", "--parts", "0"], "--parts must be at least 1"),
        (["m.keras", "a.npy", "out", "--workers", "0"], "--workers must be at least 1"),
        (["m.keras", "a.npy", "out", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["m.keras", "a.npy", "out", "--map", "inputs"], "--map must be MODULE:FUNCTION"),
        (["m.keras", "a.npy", "out", "--source", "other:rows"], "no module 'other'"),
        (["m.keras", "a.npy", "a.npy/out"], "Cannot write in OUTPUT"),
        (["m.keras", "a.npy", "."], "another directory than that of INPUT"),
    ],
)
def test_what_cannot_work_is_refused_before_a_worker_starts(place, words, message):
    result = CliRunner().invoke(app, ["predict", *words])
    assert isinstance(result.exception, PhalanxError)
    with pytest.raises(PhalanxError, match=message):
        raise result.exception
    assert not os.path.exists("runs")
    assert not os.path.exists("out")
    assert not os.path.exists(".lease")


@pytest.mark.parametrize(
    ("command", "target", "arguments", "is_refused"),
    [
        ("predict", "train.py", ["predict"], True),
        ("predict", MODULE, ["evaluate", "request.json"], True),
        ("evaluate", MODULE, ["predict", "out"], True),
        ("predict", MODULE, ["predict", "out"], False),
        ("evaluate", MODULE, ["evaluate", "request.json"], False),
    ],
)
def test_only_a_run_of_the_same_command_is_resumed(
    place, monkeypatch, command, target, arguments, is_refused
):
    (place / "runs" / "x").mkdir(parents=True)
    record = {"argv": ["the", "command"], "options": {"target": target, "arguments": arguments}}
    (place / "runs" / "x" / "run.json").write_text(json.dumps(record))
    started = []
    ended = SimpleNamespace(exit_code=3, report=None)
    monkeypatch.setattr(predict, "start", lambda *_, **__: started.append(command) or ended)
    words = ["compiled.keras", "a.npy", *["out"][: command == "predict"], "--name", "x"]
    result = CliRunner().invoke(app, [command, *words])
    if is_refused:
        with pytest.raises(ConfigurationError, match=r"runs/x already, .* `the command`\. Give"):
            raise result.exception
    assert started == [command] * (not is_refused)


def test_evaluate_refuses_a_file_that_it_cannot_write(place):
    result = CliRunner().invoke(app, ["evaluate", "m.keras", "a.npy", "--output", "no/where.json"])
    with pytest.raises(ConfigurationError, match=r"Cannot write --output no/where\.json"):
        raise result.exception


def test_evaluate_refuses_a_model_without_a_loss(place):
    result = CliRunner().invoke(app, ["evaluate", "m.keras", "a.npy"])
    with pytest.raises(ConfigurationError, match=r"was compiled .*; found none in 'm\.keras'"):
        raise result.exception
    assert not os.path.exists("runs")


@pytest.mark.parametrize("is_json", [False, True])
def test_evaluate_prints_a_metric_with_several_values(place, monkeypatch, is_json):
    content = '{"rows": 3, "metrics": {"f1": [0.5, 0.123456789, [1.0]], "loss": 2.0}}\n'
    (place / EVALUATION).write_text(content)
    ended = SimpleNamespace(exit_code=0, report=None, run_dir=place)
    monkeypatch.setattr(ModelCommand, "run", lambda *_, **__: ended)
    words = ["evaluate", "compiled.keras", "a.npy", *["--json"][:is_json]]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception
    expected = content if is_json else "f1: [0.5, 0.123457, [1]]\nloss: 2\n"
    assert result.stdout.startswith(expected)
