"""Finding the TPU, from answers that TPU machines have given."""

import http.server
import threading
from contextlib import contextmanager

import pytest

from phalanx.cluster.tpu import autodetect_tpu, find_tpu, metadata_server
from phalanx.errors import ClusterError

# What a v4 machine answers (some lines left out, names changed).
TPU_ENV = """ACCELERATOR_TYPE: 'v4-16'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
HOST_BOUNDS: '1,1,2'
NODE_ID: 'my-tpu'
PREEMPTIBLE: 'false'
TPU_PROCESS_BOUNDS: '1,1,2'
WORKER_ID: '0'
WRAP: 'true,true,true'
ZONE: 'us-central2-b'
"""
TWO_HOSTS = "unknown:unknown:10.130.0.3,unknown:unknown:10.130.0.4"


@contextmanager
def machine(answers, flavor="Google"):
    """A metadata server on loopback; gives the environment that leads to it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
            known = name in answers and self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if known else 404)
            self.send_header("Metadata-Flavor", flavor)
            self.end_headers()
            self.wfile.write(answers.get(name, "").encode())

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {"GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}"}
        finally:
            server.shutdown()
            thread.join()


def found_on(answers, extra=None, **options):
    with machine(answers, **options) as environment:
        environment = {**environment, **(extra or {})}
        return find_tpu(environment, metadata_server(environment))


def test_a_machine_with_a_tpu_of_its_own():
    place = found_on({"tpu-env": TPU_ENV, "worker-network-endpoints": "unknown:unknown:10.130.0.3"})
    assert (place.address, place.accelerator) == ("local", "v4-16")
    assert place.reason == "the metadata server names a TPU here"


def test_the_first_host_drives_a_slice():
    place = found_on({"tpu-env": TPU_ENV, "worker-network-endpoints": TWO_HOSTS})
    assert place.address == "grpc://10.130.0.3:8470,grpc://10.130.0.4:8470"


def test_another_host_of_a_slice():
    second = TPU_ENV.replace("WORKER_ID: '0'", "WORKER_ID: '1'")
    with pytest.raises(ClusterError, match=r"host 1 of a TPU with 2 hosts.*\(10.130.0.3\)"):
        found_on({"tpu-env": second, "worker-network-endpoints": TWO_HOSTS})


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"tpu-env": TPU_ENV, "worker-network-endpoints": "10.130.0.3"}, "found '10.130.0.3'"),
        (
            {
                "tpu-env": TPU_ENV.replace("WORKER_ID: '0'", "WORKER_ID: '7'"),
                "worker-network-endpoints": TWO_HOSTS,
            },
            "2 hosts and calls this one worker '7'",
        ),
    ],
)
def test_answers_that_make_no_sense(answers, says):
    with pytest.raises(ClusterError, match=says):
        found_on(answers)


def test_a_machine_without_a_tpu():
    assert found_on({}) is None
    assert found_on({"tpu-env": TPU_ENV}, flavor="another server") is None
    no_one = {"GCE_METADATA_HOST": "127.0.0.1:9"}
    assert find_tpu(no_one, metadata_server(no_one)) is None


def test_the_environment_goes_first():
    place = found_on({"tpu-env": TPU_ENV}, {"TPU_NAME": "grpc://10.0.0.9:8470"})
    assert (place.address, place.reason) == (
        "grpc://10.0.0.9:8470",
        "TPU_NAME is grpc://10.0.0.9:8470",
    )
    cluster = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0", "TPU_ACCELERATOR_TYPE": "v5e-8"}
    place = found_on({"tpu-env": TPU_ENV}, cluster)
    assert (place.address, place.accelerator) == ("grpc://a:8470,grpc://b:8470", "v5e-8")


@pytest.mark.parametrize("chip", ["accel0", "vfio/3"])
def test_auto_asks_where_there_is_a_chip(tmp_path, chip):
    (tmp_path / chip).parent.mkdir(exist_ok=True)
    (tmp_path / chip).touch()
    with machine({"tpu-env": TPU_ENV}) as environment:
        place = autodetect_tpu(environment, metadata_server(environment), tmp_path)
    assert place.reason == "the metadata server names a TPU here"
    # The same device files belong to others too, and then nothing reports a TPU.
    with machine({}) as environment:
        assert autodetect_tpu(environment, metadata_server(environment), tmp_path) is None


def test_auto_asks_no_one_elsewhere(tmp_path):
    def fetch(attribute):
        raise AssertionError(attribute)

    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()  # there wherever the driver is
    assert autodetect_tpu({"GCE_METADATA_HOST": "127.0.0.1:9"}, fetch, tmp_path) is None
    named = {"TPU_NAME": "grpc://10.0.0.9:8470"}
    assert autodetect_tpu(named, fetch, tmp_path).address == "grpc://10.0.0.9:8470"
