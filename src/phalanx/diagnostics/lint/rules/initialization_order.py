"""What must come before the strategy, and what after it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Site
from phalanx.diagnostics.lint.distributed_code import is_strategy
from phalanx.diagnostics.lint.finding import Rule, Spot
from phalanx.diagnostics.lint.script import Script

_MAKES_OPS = re.compile(
    r"^tensorflow\.(Variable|constant|convert_to_tensor|zeros|ones|fill|eye|range|linspace|cast"
    r"|reshape|stack|concat|matmul|reduce_\w+|one_hot|expand_dims"
    r"|random\.(normal|uniform|truncated_normal|shuffle|Generator\.\w+)"
    r"|data\.(Dataset|experimental)\.\w+|data\.(TFRecordDataset|TextLineDataset)"
    r"|config\.(experimental\.)?list_logical_devices|summary\.create_file_writer)$"
    r"|^keras\.(Model|Variable|random\.\w+|ops\.\w+|applications\.(\w+\.)?[A-Z]\w+"
    r"|(saving|models)\.(load_model|clone_model)|utils\.image_dataset_from_directory"
    r"|layers\.\w*(Dropout|Noise)|(optimizers|metrics)\.[A-Z]\w+)$"
)
"""Calls that start TensorFlow's runtime; a test calls them."""
_MULTI_WORKER = "tensorflow.distribute.MultiWorkerMirroredStrategy"


def _after_ops(script: Script) -> Iterator[Spot]:
    for way in script.ways:
        first: Site | None = None
        for site in way:
            if site.name == _MULTI_WORKER:
                if first is not None:
                    yield Spot(
                        node=site.node,
                        what="MultiWorkerMirroredStrategy is made after "
                        f"{ast.unparse(first.call.func)} in line {first.node.lineno}",
                    )
                break
            if first is None and _makes_ops(site):
                first = site


def _makes_ops(site: Site) -> bool:
    if site.name == "keras.Sequential":  # Layers get their weights once the input is known.
        written = ast.unparse(site.call)
        return "Input(" in written or "input_shape=" in written or "input_dim=" in written
    if site.name == "keras.Model":
        return bool(site.call.args or site.call.keywords)
    return bool(_MAKES_OPS.match(site.name))


def _tf_config_late(script: Script) -> Iterator[Spot]:
    for way in script.ways:
        made: Site | None = None
        for site in way:
            if is_strategy(site.name):
                made = made or site
            elif made is not None and _sets_tf_config(site):
                yield Spot(
                    node=site.node,
                    what=f"TF_CONFIG is set after the strategy was made in line {made.node.lineno}",
                )


def _sets_tf_config(site: Site) -> bool:
    if site.name == "environ[TF_CONFIG]":
        return True
    if site.name not in ("os.environ.setdefault", "os.environ.update", "os.putenv"):
        return False
    words = [n for a in site.call.args for n in ast.walk(a) if isinstance(n, ast.Constant)]
    keys = [keyword.arg for keyword in site.call.keywords]
    return "TF_CONFIG" in keys or any(word.value == "TF_CONFIG" for word in words)


RULES = (
    Rule(
        name="strategy-after-ops",
        severity="warning",
        why="It needs a runtime that has not started: outside phalanx run this ends in "
        '"Collective ops must be configured at program startup".',
        remedy="Make the strategy first, before any tensor, variable, dataset or model. Under "
        "phalanx run it is made before the script's first line.",
        find=_after_ops,
    ),
    Rule(
        name="tf-config-late",
        severity="warning",
        why="A strategy reads TF_CONFIG once, when it is made: this process trains alone.",
        remedy="Set it before the strategy; or leave it out, and start the script with phalanx "
        "run, which sets it for every worker.",
        find=_tf_config_late,
    ),
)
