"""`phalanx doctor`: checks machines for training, or a script for a kind of machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from phalanx.cli.cluster_option import resolve_cluster
from phalanx.cli.console import info
from phalanx.cli.run_options import NodeRank
from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import ConfigurationError
from phalanx.launcher.script_check import check_script
from phalanx.launcher.shared_options import Arguments, choice_option

if TYPE_CHECKING:
    from phalanx.diagnostics.doctor.machine import MachineInfo
    from phalanx.diagnostics.doctor.result import Result
    from phalanx.monitoring.communication_advice import StepCosts

HELP = """Check this machine for training, and print what fixes each problem.

With [bold]--cluster[/bold], started on each node like phalanx run, check all nodes together:
versions, clocks, names, the shared directory, and each link between two nodes.

With [bold]--target[/bold], report what another kind of machine would refuse in a script. The script
runs up to its first fit; nothing is trained.

Exit code 0: no error; 1: at least one error.

[bold]Examples[/bold]

  phalanx doctor

  phalanx doctor --json

  phalanx doctor --cluster --hosts a,b,c --run-dir /shared/runs    # on each of a, b and c

  phalanx doctor --target tpu train.py --epochs 10
"""
KINDS = ("tpu",)
_TIMEOUT = 120.0


def doctor(
    script: Annotated[
        str | None, typer.Argument(metavar="[SCRIPT]", help="Script to check.")
    ] = None,
    kind: Annotated[
        str | None,
        choice_option(KINDS, "--target", help="Kind of machine to check a script for."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    directory: Annotated[
        Path, typer.Option("--run-dir", help="Directory that will hold runs.")
    ] = Path("runs"),
    model_parameters: Annotated[
        str,
        typer.Option(metavar="N|NM|NB", help="Model size used for the all-reduce estimate."),
    ] = "25.6M",
    step_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="With --cluster: computing time of a step, for advice on communication.",
            show_default="as long as communication",
        ),
    ] = None,
    step_of: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="With --cluster: run whose steps and bytes are used for that advice.",
        ),
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Check all nodes of the cluster together.")
    ] = False,
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Addresses of the nodes; run the same command on each.",
            show_default="what the cluster's variables say",
        ),
    ] = None,
    node_rank: NodeRank = None,
    rendezvous_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time to wait for the other nodes.")
    ] = _TIMEOUT,
    arguments: Arguments = None,
) -> None:
    """Check this machine, all hosts, or a script; exit with 0 or 1."""
    from phalanx.diagnostics.doctor.all_reduce import parse_parameters

    of_hosts = any(each is not None for each in (hosts, node_rank, step_seconds, step_of))
    if kind is not None:
        if as_json or cluster or of_hosts:
            raise ConfigurationError(
                "--target looks at a script, and prints text; --json, --cluster, --hosts, "
                "--node-rank, --step-seconds and --step-of are for machines. Leave them out."
            )
        raise typer.Exit(_script(kind, script, arguments or []))
    if script is not None:
        raise ConfigurationError(
            f"phalanx doctor looks at a script for a kind of machine; found {script!r} and no "
            f"--target. Say which: --target {'|'.join(KINDS)}."
        )
    options = DoctorOptions(
        directory=directory,
        as_json=as_json,
        parameters=parse_parameters(model_parameters),
        rendezvous_timeout=rendezvous_timeout,
        step=_step(step_seconds, step_of, directory),
    )
    if not cluster:
        if of_hosts:
            raise ConfigurationError(
                "--hosts, --node-rank, --step-seconds and --step-of are for all hosts together. "
                "Add --cluster, and give the same command on each host."
            )
        raise typer.Exit(this_machine(options))
    node_group = resolve_cluster(hosts, node_rank, "auto")
    if node_group is None or len(node_group.hosts) == 1:
        raise ConfigurationError(
            "--cluster looks at several hosts; found "
            f"{'no cluster' if node_group is None else f'one host by {node_group.kind}'}. "
            "Start it as you start phalanx run on each host: with --hosts a,b,c, or by srun, "
            "mpiexec or in the pods."
        )
    raise typer.Exit(all_hosts(options, node_group))


def _step(seconds: float | None, run: str | None, directory: Path) -> StepCosts | None:
    """What a step costs elsewhere, if the user says it.

    Raises:
        ConfigurationError: both options are given, or the run did not measure its steps.
    """
    from phalanx.monitoring.communication_advice import StepCosts

    if seconds is not None and run is not None:
        raise ConfigurationError("Give --step-seconds or --step-of, not both.")
    if seconds is not None:
        if not 0 < seconds < float("inf"):
            raise ConfigurationError(f"--step-seconds must be more than 0; found {seconds}.")
        return StepCosts(compute=seconds, communication=0.0)
    return None if run is None else _step_of(run, directory)


def _step_of(run: str, directory: Path) -> StepCosts:
    from phalanx.report.communication import step_costs
    from phalanx.report.run_data import load_run
    from phalanx.report.run_lookup import find_run

    found = step_costs(load_run(find_run(run, directory)))
    if found is None:
        raise ConfigurationError(
            f"--step-of takes the measured steps of a run; {run} has recorded no throughput. Give "
            "a run that has trained for some seconds, or --step-seconds."
        )
    return found


def _script(kind: str, script: str | None, arguments: list[str]) -> int:
    """Check the script in a process of its own; gives its exit code."""
    if kind not in KINDS:
        raise ConfigurationError(f"--target must be one of {', '.join(KINDS)}; found {kind!r}.")
    if script is None:
        raise ConfigurationError(
            f"--target {kind} looks at a script; found none. Name it after the options."
        )
    check_script(Path(script))
    quiet = {
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "phalanx.diagnostics.doctor.tpu_report",
            "-f",
            script,
            *arguments,
        ],
        env={**os.environ, **quiet},
        check=False,
    )
    return done.returncode


_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of one `phalanx doctor`.

    Attributes:
        directory: of runs.
        as_json: print JSON at the end.
        parameters: of the model for which the cost of an all-reduce is estimated.
        rendezvous_timeout: seconds to wait for other hosts.
        step: what a step of the model costs elsewhere; None if that is not known.
    """

    directory: Path
    as_json: bool
    parameters: int
    rendezvous_timeout: float
    step: StepCosts | None


def this_machine(options: DoctorOptions) -> int:
    """Check this machine; gives the exit code."""
    from phalanx.diagnostics.doctor.all_reduce import on_this_machine
    from phalanx.diagnostics.doctor.checks import run_checks

    reporter = _Reporter(as_json=options.as_json)
    for result in run_checks(replace(_here(options), all_reduce=on_this_machine())):
        reporter.take(result)
    return reporter.end("fit for training")


def all_hosts(options: DoctorOptions, node_group: ClusterEnvironment) -> int:
    """Check all hosts; gives the exit code."""
    from phalanx.diagnostics.doctor.checks import run_checks
    from phalanx.diagnostics.doctor.cluster_check.coordinator import ClusterCheck

    info(f"{node_group.kind}: {node_group.why}")
    check = ClusterCheck(
        node_group=node_group,
        root=options.directory,
        check=lambda: list(run_checks(_here(options))),
        announce=info,
        parameters=options.parameters,
        step=options.step,
        rendezvous_timeout=options.rendezvous_timeout,
    )
    if not node_group.is_leader:
        code = check.follow()
        info(f"the results of all hosts are on {node_group.hosts[0] or 'the first of them'}")
        return code
    reporter = _Reporter(as_json=options.as_json)
    found = check.lead(reporter.take)
    return reporter.end(
        "fit for training together",
        links=[asdict(link) for link in found.links],
        advice=[asdict(advice) for advice in found.advice],
    )


def _here(options: DoctorOptions) -> MachineInfo:
    from phalanx.diagnostics.doctor.machine import MachineInfo
    from phalanx.diagnostics.doctor.probe_tensorflow import TensorFlowInfo

    return MachineInfo(
        environment=os.environ,
        directory=options.directory.absolute(),
        tensorflow=TensorFlowInfo.probe(),
        parameters=options.parameters,
        me=LocalHost.here(),
    )


@dataclass(kw_only=True)
class _Reporter:
    """Prints results one by one, or as JSON at the end."""

    as_json: bool
    results: list[Result] = field(default_factory=list)

    def take(self, result: Result) -> None:
        self.results.append(result)
        # Of the results of a node among several, only the problems.
        if not self.as_json and (result.host is None or result.verdict != "ok"):
            _show(result)

    def end(self, message: str, **more: Any) -> int:
        """Print the verdict; gives the exit code."""
        from phalanx.diagnostics.doctor.result import is_passing

        fit = is_passing(self.results)
        if self.as_json:
            found = {"fit": fit, "results": [asdict(each) for each in self.results], **more}
            print(json.dumps(found, indent=1))
        else:
            line = message if fit else f"not {message}"
            Console(highlight=False).print(Text(line, style="bold"))
        return 0 if fit else 1


def _show(result: Result) -> None:
    console = Console(highlight=False)
    line = Text(f"{result.verdict:<7}", style=_STYLES[result.verdict])
    where = "" if result.host is None else f"{result.host}: "
    console.print(line + Text(f" {where}{result.check}: {result.what}"), soft_wrap=True)
    if result.fix is not None:
        console.print(Text(f"        fix: {result.fix}", style="cyan"), soft_wrap=True)
