"""Slurm: one launcher for each task of a job step.

A batch script and an interactive shell are not tasks of a step, although they have SLURM_JOB_ID,
and a batch script even SLURM_PROCID. https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NoReturn

from phalanx.cluster.environments.rank_variables import number
from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import ClusterError

NO_TASKS = range(0xFFFFFFF0, 0xFFFFFFFF)
"""Step numbers of Slurm's own: interactive, batch, extern (slurm.h)."""
_COUNT = re.compile(r"(?P<tasks>\d+)(?:\(x(?P<nodes>\d+)\))?")


def detect(
    environment: Mapping[str, str], me: LocalHost | None = None
) -> ClusterEnvironment | None:
    """The launchers that srun started; in a batch script, this one alone.

    Raises:
        ClusterError: what Slurm says does not fit together.
    """
    job = environment.get("SLURM_JOB_ID", "")
    step = environment.get("SLURM_STEP_ID", "")
    if not job:
        return None
    if not step.isdecimal() or int(step) in NO_TASKS:
        return _outside_a_step(environment, job)
    nodes = expand(_value(environment, "SLURM_STEP_NODELIST", "SLURM_NODELIST"))
    counts = tasks_per_node(
        _value(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    )
    rank = number(environment, "SLURM_PROCID")
    if len(counts) != len(nodes):
        raise ClusterError(
            f"Slurm names {len(nodes)} nodes ({', '.join(nodes[:8])}) and tasks on "
            f"{len(counts)} ({counts[:8]}). Start the launchers by srun without changing SLURM_ "
            "variables, or give --hosts."
        )
    size = sum(counts)
    node = number(environment, "SLURM_NODEID")
    if rank >= size or node >= len(nodes):
        raise ClusterError(
            f"SLURM_PROCID is {rank} and SLURM_NODEID {node}, but the step has {size} tasks on "
            f"{len(nodes)} nodes. Start the launchers by one srun without --het-group, or give "
            "--hosts."
        )
    return ClusterEnvironment(
        hosts=_hosts(nodes, counts, environment),
        index=rank,
        kind="slurm",
        why=f"SLURM_PROCID is {rank} of {size} tasks on {len(nodes)} nodes",
        job=f"slurm-{job}" if step == "0" else f"slurm-{job}-{step}",
    )


def tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2, 1.

    Raises:
        ClusterError: it is nothing of the kind.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise ClusterError(
                f"SLURM_TASKS_PER_NODE must be such as 2(x3),1; found {text!r}. Give --hosts."
            )
        counts += [int(match["tasks"])] * int(match["nodes"] or 1)
    return counts


def _outside_a_step(environment: Mapping[str, str], job: str) -> ClusterEnvironment | None:
    """A batch script on several nodes is reported; a shell is no cluster."""
    nodes = expand(environment.get("SLURM_JOB_NODELIST") or "localhost")
    if "SLURM_PROCID" not in environment or len(nodes) == 1:
        return None
    return ClusterEnvironment(
        hosts=(nodes[0],),
        index=0,
        kind="slurm",
        why=(
            f"job {job} has {len(nodes)} nodes, but this is its batch script, on the first of "
            "them; write `srun --ntasks-per-node=1 phalanx run ...` to use all"
        ),
        job=f"slurm-{job}",
    )


def _hosts(
    nodes: Sequence[str], counts: Sequence[int], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """The host of each task, in the same way for all of them; "" where that is not known.

    Slurm does not say how it spread several tasks over a node, only which of them are here.
    """
    ways = _in_blocks(counts), _in_turns(counts)
    if environment.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        return ("",) * sum(counts)
    if ways[0] == ways[1]:
        return tuple(nodes[node] for node in ways[0])
    return (nodes[0], *[""] * (sum(counts) - 1))


def _in_blocks(counts: Sequence[int]) -> list[int]:
    """The node of each task where a node is filled before the next: `-m block`."""
    return [node for node, count in enumerate(counts) for _ in range(count)]


def _in_turns(counts: Sequence[int]) -> list[int]:
    """The node of each task where nodes take tasks in turn: `-m cyclic`."""
    rounds = range(max(counts, default=0))
    return [node for turn in rounds for node, count in enumerate(counts) if turn < count]


def _value(environment: Mapping[str, str], *names: str) -> str:
    value = next((environment[name] for name in names if environment.get(name)), None)
    if value is None:
        raise ClusterError(
            f"{names[0]} must be set in a Slurm step, as srun does; found SLURM_STEP_ID alone. "
            "Start the launchers by srun, or give --hosts."
        )
    return value


# https://slurm.schedmd.com/scontrol.html#OPT_hostnames

MOST_HOSTS = 65_536
_PIECE = re.compile(r"\[(?P<ranges>[^\[\]]*)\]|(?P<plain>[^\[\],]+)")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")


def expand(text: str) -> tuple[str, ...]:
    """The names in a node list, in its order.

    A part may have several brackets, anywhere in it. Numbers keep the zeros before them:
    `n[08-10]` is n08, n09, n10.

    Raises:
        ClusterError: it is no node list, or has more than `MOST_HOSTS` names.
    """
    names: list[str] = []
    for part in _parts(text):
        names += map("".join, product(*_pieces(part, text)))
        if len(names) > MOST_HOSTS:
            _refuse(text, f"more than {MOST_HOSTS} names")
    return tuple(names)


def _parts(text: str) -> Iterator[str]:
    """The parts between commas outside of brackets."""
    part, depth = "", 0
    for letter in text.strip():
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            _refuse(text, "brackets that do not match")
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if depth:
        _refuse(text, "a bracket that does not end")
    yield part


def _pieces(part: str, text: str) -> list[list[str]]:
    """The alternatives at each place of a part, in order."""
    if not part:
        _refuse(text, "an empty name")
    return [
        [match["plain"]] if match["plain"] else _numbers(match["ranges"], text)
        for match in _PIECE.finditer(part)
    ]


def _numbers(ranges: str, text: str) -> list[str]:
    """`1-3,07` as 1, 2, 3, 07."""
    numbers: list[str] = []
    for one in ranges.split(","):
        match = _RANGE.fullmatch(one)
        if match is None:
            _refuse(text, f"{one!r} in brackets, which is no number or range")
        first, last = match["first"], match["last"] or match["first"]
        if not 0 <= int(last) - int(first) < MOST_HOSTS:
            _refuse(text, f"the range {one}")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _refuse(text: str, found: str) -> NoReturn:
    raise ClusterError(
        f"A node list must be such as n[1-3,07],login; found {found} in {text[:200]!r}. Name the "
        "hosts by --hosts."
    )
