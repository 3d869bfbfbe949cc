"""mpirun and mpiexec: Open MPI, and MPICH and similar by PMI.

No MPI library is needed or used: MPI starts one launcher for each of its processes, no more.
https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.environments.rank_variables import rank_of
from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment

FAMILIES = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
)
JOBS = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_orte_ess_jobid",
    "OMPI_MCA_ess_base_jobid",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
)


def detect(
    environment: Mapping[str, str], me: LocalHost | None = None
) -> ClusterEnvironment | None:
    """The launchers that MPI started; their hosts are not known.

    Raises:
        ClusterError: a variable is missing, or the rank is not below the number of all.
    """
    for family, rank_name, size_name in FAMILIES:
        if rank_name in environment:
            rank, size = rank_of(environment, rank_name, size_name)
            return ClusterEnvironment(
                hosts=("",) * size,
                index=rank,
                kind="mpi",
                why=f"{family}: {rank_name} is {rank} of {size}",
                job=_job(environment),
            )
    return None


def _job(environment: Mapping[str, str]) -> str | None:
    """Open MPI's number of the job, or the batch system's; PMI gives none."""
    found = (environment.get(name, "").strip() for name in JOBS)
    name = next(filter(None, found), None)
    if name is None:
        return None
    return "mpi-" + "".join(letter if letter.isalnum() else "-" for letter in name)
