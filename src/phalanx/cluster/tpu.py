"""Where the TPU is: what the environment says, or the metadata server of a TPU machine.

What a TPU machine answers under `instance/attributes/`: `tpu-env` (lines `KEY: 'value'`) and
`worker-network-endpoints` (`name:port:address` of each host of the slice, by worker).
https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import ClusterError

FetchAttribute = Callable[[str], str | None]
"""Gives a metadata attribute by name; None where there is none, or no server to ask."""

_PORT = 8470
_VARIABLES = ("TPU_NAME", "TPU_WORKER_HOSTNAMES")
_CHIPS = ("accel[0-9]*", "vfio/[0-9]*")
_SECONDS = 3.0
_LINE = re.compile(r"^(\w+): '(.*)'$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class TpuEndpoint:
    """A TPU that was found.

    Attributes:
        address: what TensorFlow's `TPUClusterResolver` takes: "local", a name, or
            `grpc://` addresses with commas between.
        accelerator: its type, such as "v4-8"; None where it is unknown.
        reason: how it was found, for people.
    """

    address: str
    accelerator: str | None
    reason: str


def find_tpu(environment: Mapping[str, str], fetch: FetchAttribute) -> TpuEndpoint | None:
    """The TPU that this process is to use; None where there is none.

    TPU_NAME decides where it is set. On a machine of a slice with several hosts only
    worker 0 drives all of them.

    Raises:
        ClusterError: this is another host of the slice, or an answer makes no sense.
    """
    if name := environment.get("TPU_NAME", "").strip():
        kind = environment.get("TPU_ACCELERATOR_TYPE") or None
        return TpuEndpoint(address=name, accelerator=kind, reason=f"TPU_NAME is {name}")
    if hosts := environment.get("TPU_WORKER_HOSTNAMES", "").strip():
        return _of_slice(
            hosts.split(","),
            environment.get("TPU_WORKER_ID", "0"),
            environment.get("TPU_ACCELERATOR_TYPE") or None,
            "TPU_WORKER_HOSTNAMES",
        )
    described = fetch("tpu-env")
    if described is None:
        return None
    known = dict(_LINE.findall(described))
    endpoints = fetch("worker-network-endpoints") or ""
    return _of_slice(
        [_address(endpoint) for endpoint in filter(None, endpoints.split(","))] or ["localhost"],
        known.get("WORKER_ID") or "0",
        known.get("ACCELERATOR_TYPE"),
        "the metadata server",
    )


def autodetect_tpu(
    environment: Mapping[str, str], fetch: FetchAttribute, device_files: Path = Path("/dev")
) -> TpuEndpoint | None:
    """The TPU to use where none was requested: found only where there is evidence of one.

    That is a variable of the environment, or the file of a chip (`accel0`, `vfio/0`): so other
    machines wait for no metadata server.

    Raises:
        ClusterError: as for `find_tpu`.
    """
    named = any(environment.get(name, "").strip() for name in _VARIABLES)
    if not named and not any(next(device_files.glob(chip), None) for chip in _CHIPS):
        return None
    return find_tpu(environment, fetch)


def metadata_server(environment: Mapping[str, str]) -> FetchAttribute:
    """Asks the machine's metadata server, where TensorFlow would ask it too."""
    default = environment.get("GCE_METADATA_IP") or "metadata.google.internal"
    host = environment.get("GCE_METADATA_HOST") or default

    def fetch(attribute: str) -> str | None:
        request = urllib.request.Request(
            f"http://{host}/computeMetadata/v1/instance/attributes/{attribute}",
            headers={"Metadata-Flavor": "Google"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                if answer.headers.get("Metadata-Flavor") != "Google":
                    return None  # somebody else's server
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError, ValueError):
            return None

    return fetch


def _of_slice(hosts: list[str], worker: str, accelerator: str | None, source: str) -> TpuEndpoint:
    if not worker.isdigit() or int(worker) >= len(hosts):
        raise ClusterError(
            f"{source} describes a TPU of {len(hosts)} hosts and calls this one worker "
            f"{worker!r}. Set TPU_NAME to the TPU's name or grpc:// address."
        )
    if len(hosts) == 1:
        return TpuEndpoint(
            address="local", accelerator=accelerator, reason=f"{source} names a TPU here"
        )
    if int(worker) > 0:
        raise ClusterError(
            f"This is host {worker} of a TPU with {len(hosts)} hosts. One process drives all of "
            f"them: start phalanx run on host 0 ({hosts[0]}) alone."
        )
    return TpuEndpoint(
        address=",".join(f"grpc://{host}:{_PORT}" for host in hosts),
        accelerator=accelerator,
        reason=f"{source} names a TPU with {len(hosts)} hosts",
    )


def _address(endpoint: str) -> str:
    """The address in `name:port:address`."""
    parts = endpoint.strip().split(":")
    if len(parts) != 3:
        raise ClusterError(
            f"The metadata server's worker-network-endpoints must be name:port:address; found "
            f"{endpoint!r}. Set TPU_NAME to the TPU's name or grpc:// address."
        )
    return parts[2]
