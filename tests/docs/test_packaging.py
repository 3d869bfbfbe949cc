"""The files for GitHub and for package indexes agree with the Makefile and pyproject.toml.

`make package` builds, checks and installs the packages themselves.
"""

import re

import yaml
from pages import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())


def stages_of_test_full():
    (line,) = re.findall(r"^test-full: (.+?)  ##", MAKEFILE, re.MULTILINE)
    return line.split()


def test_the_nightly_jobs_are_the_stages_of_test_full():
    assert WORKFLOW["jobs"]["nightly"]["strategy"]["matrix"]["stage"] == stages_of_test_full()


def test_every_target_of_the_workflow_exists():
    commands = [
        step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert len(commands) >= 3
    for command in commands:
        make, target = command.split(" ", 1)
        assert make == "make"
        for each in stages_of_test_full() if "matrix.stage" in target else [target]:
            assert re.search(rf"^{each}: ", MAKEFILE, re.MULTILINE), each


def test_the_workflow_runs_what_ci_runs():
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1].removeprefix("exec ")
    assert {"run": command} in WORKFLOW["jobs"]["test"]["steps"]


def test_the_version_is_in_one_place():
    """What pyproject.toml says; the package asks its metadata."""
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())
    source = (ROOT / "src" / "phalanx" / "__init__.py").read_text()
    assert '__version__ = _version("phalanx")' in source
