"""Scripts that use KerasHub, KerasRS and KerasTuner say the same on two workers as on their own.

`scripts/install_keras_libraries.sh` installs the three.
"""

import importlib.util
from pathlib import Path

import gallery
import pytest

pytestmark = pytest.mark.full

SCRIPTS = Path(__file__).parent / "libraries"
NEEDS = {
    "causal_language_model": "keras_hub",
    "masked_language_model": "keras_hub",
    "retrieval": "keras_rs",
}


def needs(library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"there is no {library} here: scripts/install_keras_libraries.sh")


@pytest.mark.parametrize("name", NEEDS)
def test_two_workers_say_what_one_device_does(name, tmp_path, shared_fork_server):
    needs(NEEDS[name])
    script = SCRIPTS / f"{name}.py"
    wanted = gallery.plain(script, tmp_path / "plain")
    found = gallery.under_phalanx(script, tmp_path / "two", shared_fork_server)
    assert not gallery.differences(wanted, found, 1e-5)


def test_a_search_that_continues_tries_the_same(tmp_path, shared_fork_server):
    needs("keras_tuner")
    script = SCRIPTS / "hyperparameter_search.py"
    for trials in ("2", "4"):
        wanted = gallery.plain(script, tmp_path / "plain", trials)
        found = gallery.under_phalanx(script, tmp_path / "two", shared_fork_server, trials)
        assert len(found["trials"]) == int(trials)
        assert not gallery.differences(wanted, found, 1e-5)
