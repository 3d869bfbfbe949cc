"""Two replicas in one process: each copy of what they count for themselves comes back."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "workers"))
import resume_cases

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", ["callbacks_and_averages", "pipeline"])
def test_ends_as_if_nothing_had_happened(mirrored2, tmp_path, name):
    with mirrored2.scope():
        whole = resume_cases.run(name, str(tmp_path / "whole"), every=2)
        assert resume_cases.run(name, str(tmp_path / "broken"), every=2, break_at=5) is None
        again = resume_cases.run(name, str(tmp_path / "broken"), every=2)
    for one, other in zip(whole["weights"], again["weights"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert again["history"] == whole["history"]
    assert again["log"] == whole["log"]
