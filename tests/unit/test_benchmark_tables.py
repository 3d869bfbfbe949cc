"""What benchmarks print where the output is no terminal, and as JSON."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COLUMNS = tuple(f"column {number} with a long name" for number in range(12))


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import tables

    yield tables
    del sys.modules["tables"]


def test_a_table_is_whole_where_there_is_no_terminal(tables, capsys):
    row = tuple(f"{number} " + "x" * 30 for number in range(12))
    tables.show(tables.Results(columns=COLUMNS, rows=[row], title="What"), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert any(all(cell in line for cell in row) for line in lines)
    assert any(all(column in line for column in COLUMNS) for line in lines)
    assert lines[0].strip() == "What"


def test_json_has_numbers_where_cells_are_numbers(tables, capsys):
    found = tables.Results(columns=("a", "a", "b", "c"), rows=[("`x`", "1,200.5", "± 3%", "-2")])
    tables.show(found, tables.Results(columns=(), rows=()), as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert first == {
        "title": None,
        "columns": ["a", "a", "b", "c"],
        "rows": [["`x`", 1200.5, "± 3%", -2]],
    }
    assert second["rows"] == []
