"""What in a script speaks of other workers: ranks, their number, strategies, Horovod."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from phalanx.diagnostics.lint.call_order import Guard, Site
from phalanx.diagnostics.lint.import_names import last_part
from phalanx.diagnostics.lint.script import Script

_RANK = re.compile(
    r"^_?(my_|global_|world_|local_|hvd_|node_|cluster_)?(rank|task_id|task_idx|task_index|task_type"
    r"|worker_id|worker_idx|worker_index|process_id|process_index)$"
    r"|^_?is_(the_)?(chief|master|main_process|main_worker|rank_?0|rank_zero|coordinator)$"
)
_COUNT = re.compile(
    r"^(n|num|number_of|nr)_?(of_)?(workers|replicas|replicas_in_sync|processes|ranks)$"
    r"|^(world|hvd|horovod|cluster)_size$|^(replicas|workers)_?(count)?$|^n_?(workers|replicas)$"
)
_MULTI_WORKER = (
    "tensorflow.distribute.MultiWorkerMirroredStrategy",
    "tensorflow.distribute.CollectiveAllReduceStrategy",
    "tensorflow.distribute.ParameterServerStrategy",
    "phalanx.strategy",
)


def is_about_rank(script: Script, node: ast.AST) -> bool:
    """Whether an expression asks which worker this is."""
    return any(_is_rank(script, part) for part in ast.walk(node) if isinstance(part, ast.expr))


def _is_rank(script: Script, node: ast.expr) -> bool:
    """Whether an expression is a rank, or a name that was given what comes of comparing one."""
    if isinstance(node, ast.Name) and node.id not in script.names:
        compared = [v for v in script.values.get(node.id, []) if isinstance(v, _COMPARISONS)]
        if any(_names_rank(script, part) for value in compared for part in ast.walk(value)):
            return True
    return _names_rank(script, node)


_COMPARISONS = (ast.Compare, ast.BoolOp)


def _names_rank(script: Script, node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        # tf.rank is the number of a tensor's dimensions.
        return bool(_RANK.match(node.attr)) and not script.name(node).startswith("tensorflow.rank")
    if not isinstance(node, ast.Name) or not _RANK.match(node.id):
        return False
    values = script.values.get(node.id, [])
    return not (values and all(isinstance(value, ast.Constant) for value in values))


def is_worker_count(script: Script, node: ast.expr) -> bool:
    """Whether an expression is the number of workers or replicas."""
    if isinstance(node, ast.Call):
        name = script.name(node.func)
        if name in ("int", "float", "max") and node.args:
            return any(is_worker_count(script, argument) for argument in node.args)
        return name == "horovod.size" or name.endswith(".local_size")
    if isinstance(node, ast.Attribute):
        return node.attr in ("num_replicas_in_sync", "num_input_pipelines")
    if isinstance(node, ast.Name):
        values = script.values.get(node.id, [])
        known = [value for value in values if not isinstance(value, ast.Name)]
        return bool(_COUNT.match(node.id)) or any(is_worker_count(script, v) for v in known)
    return False


def on_one_rank(script: Script, site: Site) -> Guard | None:
    """The condition on the rank that a call runs under, unless other ranks make the same call."""
    for guard in site.guards:
        if is_about_rank(script, guard.test) and not _also_called(guard, site.method):
            return guard
    return None


def _also_called(guard: Guard, method: str) -> bool:
    calls = (n for part in guard.otherwise for n in ast.walk(part) if isinstance(n, ast.Call))
    return any(last_part(call.func) == method for call in calls)


def strategies_made(way: tuple[Site, ...]) -> Iterator[Site]:
    """The strategies that are made on one way through a script."""
    for site in way:
        if is_strategy(site.name):
            yield site


def is_strategy(name: str) -> bool:
    """Whether a call of this name makes a strategy."""
    made = name.startswith("tensorflow.distribute.") and name.endswith("Strategy")
    return made or name == "phalanx.strategy"


def has_several_processes(script: Script) -> bool:
    """Whether a script says on its own that it is one of several workers."""
    if script.imports("horovod") or any(s.name == "environ[TF_CONFIG]" for s in script.sites):
        return True
    return any(site.name in _MULTI_WORKER for site in script.sites)


def has_parameter_servers(script: Script) -> bool:
    """Whether ranks have different jobs, so that conditions on them are right."""
    return any(site.name.endswith("ParameterServerStrategy") for site in script.sites)


def shares_as_horovod(script: Script) -> bool:
    """Whether each process has data of its own, as Horovod's optimizer or tape has it."""
    makers = ("horovod.DistributedOptimizer", "horovod.DistributedGradientTape")
    return any(site.name in makers for site in script.sites)
