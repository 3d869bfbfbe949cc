"""The versions of Python, Keras and TensorFlow that Phalanx is tested with.

    nox                     all environments
    nox -l                  their names
    nox -s "versions(3.13, keras nightly, tensorflow 2.21.0)"

Nine environments would have every pair of versions; these eight leave out the oldest Keras with a
TensorFlow that is not released yet. Each session runs the tests of `make test-fast`, the canaries,
which name a private function that has moved, the table of docs/equivalence-table.md, and one whole
command, and writes its row of docs/compatibility.md.

`nox -s colab` installs Phalanx among the versions of Colab and fails if one of them changes.
"""

import nox

nox.needs_version = ">=2024.4.15"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["versions", "colab"]

ENVIRONMENTS = (
    ("3.11", "3.12.*", "2.20.0"),
    ("3.11", "3.15.*", "2.21.0"),
    ("3.11", "nightly", "2.22.0rc0"),
    ("3.12", "3.12.*", "2.21.0"),
    ("3.12", "3.15.*", "2.22.0rc0"),
    ("3.12", "nightly", "2.20.0"),
    ("3.13", "3.15.*", "2.20.0"),
    ("3.13", "nightly", "2.21.0"),
)
"""Python, Keras, TensorFlow."""

NAMES = [f"{python}, keras {keras}, tensorflow {tf}" for python, keras, tf in ENVIRONMENTS]
COLAB = "scripts/colab.txt"
"""What Colab has, as `pip freeze` wrote it; only what Phalanx needs."""

_PYTEST = ("python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "-p", "no:anyio")


@nox.session
@nox.parametrize("python,keras,tensorflow", ENVIRONMENTS, ids=NAMES)
def versions(session: nox.Session, keras: str, tensorflow: str) -> None:
    """The fast tests, the canaries, the equivalence table and a command with these versions."""
    _install(session, f"tensorflow-cpu=={tensorflow}", *_keras(keras))
    # keras and keras-nightly write to one folder, and TensorFlow requires one or the other.
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", "keras", "keras-nightly")
    only = ["--pre", "keras-nightly"] if keras == "nightly" else _keras(keras)
    session.install("--no-deps", *only)
    _run(session)


@nox.session(python="3.12")
def colab(session: nox.Session) -> None:
    """The same with Colab's versions, of which installing Phalanx must change none."""
    _install(session, "tensorflow-cpu", "keras", "--constraint", COLAB)
    session.install("--no-deps", "tf-keras==2.20.*")  # later ones need a later protobuf
    _run(session)


def _keras(version: str) -> list[str]:
    return [] if version == "nightly" else [f"keras=={version}"]


def _install(session: nox.Session, *requirements: str) -> None:
    extras = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
    session.install("-e", ".", *requirements)
    tools = [each for each in extras["dev"] if not each.startswith("tf-keras")]
    session.install(*tools, *requirements)
    session.install("--no-deps", "tf-keras")  # It pins TensorFlow; tests only import it.


def _run(session: nox.Session) -> None:
    place = session.create_tmp()
    session.run(
        *("phalanx", "run", "--workers", "2", "--run-dir", f"{place}/runs"),
        *("examples/mnist.py", "--epochs", "1"),
    )
    rest = {"success_codes": [0, 1]}  # the row says which have failed
    session.run(
        *_PYTEST,
        "tests/unit",
        "-m",
        "not full and not process",
        f"--junitxml={place}/fast.xml",
        **rest,
    )
    session.run(
        *_PYTEST,
        "tests/replicas/test_canaries.py",
        "tests/parameter_server/test_server_canaries.py",
        f"--junitxml={place}/canaries.xml",
        **rest,
    )
    with open(f"{place}/equivalence.json", "w") as file:
        session.run(
            *("python", "benchmarks/equivalence.py", "--json", "--phalanx-only"),
            stdout=file,
            stderr=None,
            **rest,
        )
    session.run("python", "scripts/compatibility.py", place)
