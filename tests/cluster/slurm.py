"""A real Slurm on loopback: a controller and some nodes, each at an address of its own."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager

from phalanx.launcher.ports import pick_free_ports

PROGRAMS = ("munge", "munged", "slurmctld", "slurmd", "srun", "sbatch", "runuser")
SECONDS = 240

# A node that is only said to be down still runs what it ran, so a job's next start keeps off it:
# ReturnToService=1 leaves it down, though it answers, and KillWait outlives the test.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
KillWait=600
SlurmdTimeout=180
MessageTimeout=60
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """Why Slurm cannot be started here; None where it can."""
    path = os.environ["PATH"] + os.pathsep + "/usr/sbin"
    if missing := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        return f"there is no {', '.join(missing)} here"
    return None if os.geteuid() == 0 else "Slurm's daemons need root here"


class Slurm:
    """A cluster that runs; its nodes are called by their addresses."""

    def __init__(self, place, nodes):
        self.names = [f"127.0.1.{number}" for number in range(1, nodes + 1)]
        self.config = place / "slurm.conf"

    def call(self, *words):
        environment = {**os.environ, "SLURM_CONF": str(self.config)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def state(self, job):
        """What Slurm says of a job: its state, such as RUNNING."""
        output = self.call("scontrol", "show", "job", job)
        return output.split("JobState=")[1].split()[0]

    def reported(self):
        """What Slurm knows of its jobs and nodes, and the end of what its daemons wrote."""
        requested = [self.call("scontrol", "show", what) for what in ("job", "node")]
        logs = sorted(self.config.parent.glob("*.log"))
        return "\n".join([*requested, *(log.read_text(errors="replace")[-2000:] for log in logs)])

    def restarts(self, job):
        output = self.call("scontrol", "show", "job", job)
        return int(output.split("Restarts=")[1].split()[0])


@contextmanager
def slurm_up(place, nodes):
    """A controller and `nodes` nodes; ends what it started."""
    slurm = Slurm(place, nodes)
    controller, *ports = pick_free_ports(1 + nodes)
    (place / "state").mkdir()
    for name in slurm.names:
        (place / f"spool.{name}").mkdir()
    host = socket.gethostname()
    slurm.config.write_text(
        CONFIG.format(
            host=host,
            controller=controller,
            place=place,
            nodes="\n".join(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 "
                "RealMemory=1000"
                for name, port in zip(slurm.names, ports, strict=True)
            ),
        )
    )
    with ExitStack() as stack:
        _munge(stack, place)
        config = ("-f", str(slurm.config))
        _daemon(stack, place, "slurmctld", ["/usr/sbin/slurmctld", "-D", *config])
        for name in slurm.names:
            _daemon(stack, place, f"slurmd.{name}", ["/usr/sbin/slurmd", "-D", "-N", name, *config])
        _wait_for_idle(slurm, place)
        yield slurm


def _munge(stack, place):
    """munge signs the messages of Slurm's programs; one that runs already will do."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return
    os.makedirs("/run/munge", exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    words = ["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--foreground", "--force"]
    _daemon(stack, place, "munged", words)


def _daemon(stack, place, name, words):
    with (place / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    stack.callback(process.wait, timeout=SECONDS)
    stack.callback(process.terminate)


def _wait_for_idle(slurm, place):
    environment = {**os.environ, "SLURM_CONF": str(slurm.config)}
    words = ["sinfo", "--noheader", "--Node", "--format", "%T"]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.stdout.split() == ["idle"] * len(slurm.names):
            return
        time.sleep(0.2)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in place.glob("*.log"))
    raise AssertionError(f"Slurm did not come up: {done.stdout}{done.stderr}\n{logs}")
