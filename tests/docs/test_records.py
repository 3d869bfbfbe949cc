"""`docs/records.md` names every kind of event and every field of it."""

import re
from pathlib import Path

import pytest

from phalanx.monitoring.events import EVENT_TYPES, field_names

PAGE = Path(__file__).parents[2] / "docs" / "records.md"
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", re.MULTILINE)
HEARTBEAT_PHASES = "start input compute callbacks checkpoint validation idle"
NOT_FIELDS = {
    "attempt_start": {"rank", "pid", "host", "forked"},
    "heartbeat": {*HEARTBEAT_PHASES.split(), "fit"},
    "reduction_plan": {"travels", "rows", "summed_rows", "dense"},
    "straggler": {"input", "compute", "callbacks"},
    "throughput": {"compute"},
}
"""What a row names besides: keys within a field, and values."""


def rows():
    return {kind: text for kind, text in ROW.findall(PAGE.read_text()) if kind in EVENT_TYPES}


def test_every_kind_has_a_row():
    assert rows().keys() == EVENT_TYPES.keys()


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES))
def test_a_row_names_the_fields_of_its_kind(kind):
    outside_of_links = re.sub(r"\[[^]]*\]\([^)]*\)", "", rows()[kind])
    named = set(re.findall(r"`(\w+)`", outside_of_links)) - NOT_FIELDS.get(kind, set())
    assert named - {"Checkpoint"} == set(field_names(EVENT_TYPES[kind]))
