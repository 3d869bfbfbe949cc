"""`phalanx submit`: hand a run to a cluster; a file for each kind."""

from __future__ import annotations

import typer

from phalanx.cli.submit_kubernetes import HELP as KUBERNETES_HELP
from phalanx.cli.submit_kubernetes import kubernetes
from phalanx.cli.submit_ray import HELP as RAY_HELP
from phalanx.cli.submit_ray import ray
from phalanx.cli.submit_slurm import HELP as SLURM_HELP
from phalanx.cli.submit_slurm import slurm

HELP = """Submit a run to a cluster, which starts a launcher on every node.

[bold]Examples[/bold]

  phalanx submit slurm --nodes 4 --workers-per-node 2 train.py

  phalanx submit kubernetes --workers 4 --image IMAGE --pvc PVC train.py

  phalanx submit ray --address http://head:8265 --workers 4 train.py
"""

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")
SETTINGS = {"allow_interspersed_args": False}  # what follows the script is the script's own
app.command("slurm", help=SLURM_HELP, context_settings=SETTINGS)(slurm)
app.command("kubernetes", help=KUBERNETES_HELP, context_settings=SETTINGS)(kubernetes)
app.command("ray", help=RAY_HELP, context_settings=SETTINGS)(ray)
