"""One file that every worker writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Site
from phalanx.diagnostics.lint.distributed_code import (
    has_parameter_servers,
    has_several_processes,
    is_about_rank,
    on_one_rank,
)
from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.import_names import last_part
from phalanx.diagnostics.lint.script import Script

_WRITES = ("numpy.save", "numpy.savez", "numpy.savetxt", "matplotlib.pyplot.savefig")
_METHODS = ("?.write_text", "?.write_bytes", "?.to_csv", "?.savefig")
_SAVES = (
    "?.save",
    "?.save_weights",
    "?.export",
    "keras.models.save_model",
    "keras.saving.save_model",
)
_OWN_PLACE = re.compile(r"rank|worker|task|pid|host|tmp|temp|index|replica|null", re.IGNORECASE)


def _same_path(script: Script) -> Iterator[Spot]:
    if not _is_distributed(script):
        return
    for site in script.sites:
        path = _path_written(site)
        if path is not None and _is_shared(script, path) and on_one_rank(script, site) is None:
            yield Spot(node=site.node, what=f"Every worker writes {_shown(path)}")


def _same_model(script: Script) -> Iterator[Spot]:
    if not has_several_processes(script) or has_parameter_servers(script):
        return
    for site in script.sites:
        path = _first_argument(site) if site.name in _SAVES else None
        if path is not None and _is_shared(script, path) and on_one_rank(script, site) is None:
            yield Spot(node=site.node, what=f"Every worker saves the model as {_shown(path)}")


def _is_distributed(script: Script) -> bool:
    trains = script.imports("keras", "tensorflow") and script.calls("fit", "run")
    return has_several_processes(script) and trains and not has_parameter_servers(script)


def _path_written(site: Site) -> ast.expr | None:
    call = site.call
    if site.name in ("open", "io.open", "tensorflow.io.gfile.GFile"):
        modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
        writes = any(isinstance(m, ast.Constant) and str(m.value)[:1] in "wax" for m in modes)
        return call.args[0] if writes and call.args else None
    if site.name in _WRITES:
        return _first_argument(site)
    if site.name in ("?.write_text", "?.write_bytes") and isinstance(call.func, ast.Attribute):
        return call.func.value
    return _first_argument(site) if site.name in _METHODS else None


def _first_argument(site: Site) -> ast.expr | None:
    return site.call.args[0] if site.call.args else None


def _is_shared(script: Script, path: ast.expr) -> bool:
    """Whether the path is the same on all workers, as far as its text shows."""
    if is_about_rank(script, path) or _OWN_PLACE.search(ast.unparse(path)):
        return False
    names = [node.id for node in ast.walk(path) if isinstance(node, ast.Name)]
    values = [value for name in names for value in script.values.get(name, [])]
    if any(isinstance(v, ast.Attribute) and last_part(v) == "name" for v in values):
        return False
    return not any(is_about_rank(script, v) or _OWN_PLACE.search(ast.unparse(v)) for v in values)


def _shown(path: ast.expr) -> str:
    return f"`{ast.unparse(path)}`"


RULES = (
    Rule(
        name="same-path",
        severity="warning",
        why="All of them run the script, so they write into one another's file.",
        remedy="Write it on the chief alone (`if rank == 0:`, or a phalanx.callbacks.Callback "
        'with runs_on = "chief"), or put the rank into the name.',
        find=_same_path,
    ),
    Rule(
        name="same-model-path",
        severity="hint",
        why="Under plain Keras they write into one another's file. Under phalanx run each file "
        "is complete or absent, and all write the same.",
        remedy="Nothing, under phalanx run; elsewhere save to a path of each worker's own, and "
        "keep the chief's.",
        find=_same_model,
    ),
)
