"""The cluster environment of this process, and the strategy that `auto` selects."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.cluster.detect import Detection, detect, probe_all
from phalanx.cluster.tf_config_parser import TFConfig
from phalanx.cluster.tpu import autodetect_tpu, metadata_server
from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok
from phalanx.errors import ClusterError, ConfigurationError
from phalanx.worker.strategy_selection import choose_alone

_CHECK = "cluster"


def check(here: MachineInfo) -> Iterator[Result]:
    """The cluster that `phalanx run` would join, and a script's strategy without a launcher."""
    yield _cluster(here)
    yield _strategy(here)


def _cluster(here: MachineInfo) -> Result:
    detections = probe_all(here.environment, me=here.me)
    try:
        node_group = detect(here.environment, me=here.me)
    except (ClusterError, ConfigurationError) as problem:
        first = str(problem).splitlines()[0]
        kinds = " or ".join(
            f"--cluster {one.kind}" for one in detections if one.node_group is not None
        )
        fix = f"phalanx run {kinds or '--cluster none'}; or fix the variables that it names"
        return failed(_CHECK, first, fix)
    if node_group is None:
        kinds = ", ".join(one.kind for one in detections)
        return ok(_CHECK, f"none: no variables of {kinds}; phalanx run is alone here")
    who = f"launcher {node_group.index} of {len(node_group.hosts)}"
    lead = "" if len(node_group.hosts) == 1 else f", led by {node_group.hosts[0] or 'the first'}"
    return ok(
        _CHECK,
        f"{node_group.kind}: {node_group.why}; {who}{lead}{_others(detections, node_group.kind)}",
    )


def _others(detections: list[Detection], chosen: str) -> str:
    """Cluster environments that were detected too, and are not used."""
    also = [one.kind for one in detections if one.kind != chosen and (one.node_group or one.error)]
    return f" ({', '.join(also)} found too, {chosen} comes first)" if also else ""


def _strategy(here: MachineInfo) -> Result:
    environment = here.environment
    try:
        choice = choose_alone(
            "auto",
            TFConfig.from_environment(environment),
            len(here.tensorflow.gpus),
            horovod_size=int(environment.get("HOROVOD_SIZE", 0)),
            tpu=autodetect_tpu(environment, metadata_server(environment), here.root / "dev"),
        )
    except (ClusterError, ConfigurationError) as problem:
        first = str(problem).splitlines()[0]
        return failed("strategy", first, "unset TF_CONFIG, or fix it")
    return ok("strategy", f"auto means {choice.kind} here: {choice.reason}")
