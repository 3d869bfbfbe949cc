"""`phalanx doctor`: each check against a machine that is fit, and against ones that are not."""

import dataclasses
import json
import os
import resource
import subprocess
import sys

import pytest

from phalanx.diagnostics.doctor.all_reduce import AllReduceResult, Speed
from phalanx.diagnostics.doctor.checks import (
    CHECKS,
    all_reduce,
    cluster,
    hardware,
    network,
    software,
    storage,
)
from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.probe_tensorflow import Library, TensorFlowInfo, wanted
from phalanx.diagnostics.doctor.result import failed, is_passing, ok, warning
from phalanx.errors import ConfigurationError


def here(tmp_path, environment=None, **tensorflow):
    return MachineInfo(
        environment=environment or {},
        directory=tmp_path / "runs",
        tensorflow=TensorFlowInfo(**tensorflow),
        root=tmp_path,
    )


def verdicts(results):
    return {result.verdict for result in results}


def test_versions_that_fit_together(tmp_path):
    results = list(software.check_versions(here(tmp_path)))
    assert "error" not in verdicts(results)
    assert results[0].what.startswith("Python 3.")
    assert any(r.what.startswith("keras 3.") for r in results)


def test_a_version_that_is_too_old(tmp_path):
    wanted = ("keras>=99.0", "nowhere-to-be-found>=2", 'tensorflow-cpu>=2.20; extra == "cpu"')
    place = dataclasses.replace(here(tmp_path), requirements=wanted)
    found = [r for r in software.check_versions(place) if r.verdict == "error"]
    assert [r.fix for r in found] == [
        "pip install 'keras>=99.0'",
        "pip install 'nowhere-to-be-found>=2'",
    ]
    assert "is missing, wanted >=2" in found[1].what


def test_a_tensorflow_that_does_not_load(tmp_path):
    results = list(software.check_versions(here(tmp_path, error="ImportError: libfoo.so")))
    (broken,) = (r for r in results if r.verdict == "error")
    assert "does not load: ImportError: libfoo.so" in broken.what
    assert broken.fix.startswith("pip install --force-reinstall")


def test_another_backend_of_keras(tmp_path):
    results = software.check_versions(here(tmp_path, {"KERAS_BACKEND": "jax"}))
    assert "export KERAS_BACKEND=tensorflow" in [r.fix for r in results]


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [("fpu avx avx2 fma", "ok"), ("fpu avx", "warning"), ("fpu sse2", "error")],
)
def test_the_processor(tmp_path, flags, verdict):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    cpu, _ = hardware.check_devices(here(tmp_path))
    assert cpu.verdict == verdict


@pytest.mark.parametrize(
    ("files", "tensorflow", "verdict", "says"),
    [
        (0, {}, "ok", "none"),
        (2, {"gpus": ("a", "b"), "has_cuda": True}, "ok", "sees 2"),
        (2, {"has_cuda": False}, "warning", "built for CPUs"),
        (2, {"gpus": ("a",), "has_cuda": True}, "warning", "does not load CUDA"),
    ],
)
def test_gpus(tmp_path, files, tensorflow, verdict, says):
    (tmp_path / "dev").mkdir()
    for number in range(files):
        (tmp_path / "dev" / f"nvidia{number}").touch()
    _, gpus = hardware.check_devices(here(tmp_path, **tensorflow))
    assert gpus.verdict == verdict
    assert says in gpus.what
    assert (gpus.fix is None) == (verdict == "ok")


@pytest.mark.parametrize(
    ("output", "verdict", "says"),
    [
        ("missing", "warning", "not built"),
        ("gloo", "ok", "built, with gloo"),
        ("gloo, mpi", "ok", "built, with gloo, mpi"),
        ("horovod is installed but does not load", "warning", "does not load"),
    ],
)
def test_horovod(tmp_path, output, verdict, says):
    (result,) = software.check_horovod(here(tmp_path, horovod=output))
    assert result.verdict == verdict
    assert says in result.what
    builds = "sh scripts/build_horovod.sh" in (result.fix or "")
    assert builds == (verdict == "warning")


def test_the_cluster_and_what_auto_means(tmp_path):
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    none, alone = cluster.check(here(tmp_path))
    assert none.what.startswith("none: no variables of hosts, tf_config")
    assert alone.what.startswith("auto means single here")
    place, two = cluster.check(here(tmp_path, {"TF_CONFIG": json.dumps(config)}))
    assert "launcher 1 of 2, led by a" in place.what
    assert "multiworker here: TF_CONFIG makes this worker 1 of 2" in two.what
    for wrong in cluster.check(here(tmp_path, {"TF_CONFIG": "{"})):
        assert wrong.verdict == "error"


def test_two_clusters_and_which_counts(tmp_path):
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    pods = {
        "JOB_COMPLETION_INDEX": "0",
        "PHALANX_NUM_PODS": "3",
        "PHALANX_POD_HOSTNAME_TEMPLATE": "x-{index}.x",
        "PHALANX_RUN_ID": "x",
    }
    both, _ = cluster.check(here(tmp_path, {**torchrun, **pods}))
    assert "(kubernetes found too, torchrun comes first)" in both.what
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    two, _ = cluster.check(here(tmp_path, {"TF_CONFIG": json.dumps(config), **pods}))
    assert two.verdict == "error"
    assert "--cluster tf_config or --cluster kubernetes" in two.fix


def lib(name, requirement="", error=None):
    return Library(name=name, requirement=requirement, error=error)


@pytest.mark.parametrize(
    ("found", "fixes"),
    [
        ([lib("cudnn", "nvidia-cudnn-cu12>=9.3"), lib("cuda")], []),
        (
            [lib("cudnn", "nvidia-cudnn-cu12<10.0,>=9.3", "missing"), lib("cuda")],
            ["pip install 'nvidia-cudnn-cu12<10.0,>=9.3'"],
        ),
        (
            [lib("nccl", "nvidia-nccl-cu12>=2.25", "libfoo.so"), lib("cuda", error="no such")],
            [
                hardware.DRIVER,
                "pip install --force-reinstall --no-deps 'nvidia-nccl-cu12>=2.25'",
            ],
        ),
    ],
)
def test_the_cuda_libraries_that_load(tmp_path, found, fixes):
    (tmp_path / "dev").mkdir()
    assert list(hardware.check_cuda(here(tmp_path, libraries=tuple(found)))) == []  # no GPU is here
    (tmp_path / "dev" / "nvidia0").touch()
    results = list(hardware.check_cuda(here(tmp_path, libraries=tuple(found))))
    assert [result.fix for result in results if result.fix] == fixes
    assert verdicts(results) == ({"warning"} if fixes else {"ok"})


def test_the_wheels_that_tensorflow_asks_for():
    lines = [
        "numpy>=1.26",
        'nvidia-cudnn-cu12<10.0,>=9.3.0.75; extra == "and-cuda"',
        "nvidia-nccl-cu12>=2.25.1; extra == 'and-cuda'",
        'jax; extra == "other"',
    ]
    assert [one.name for one in wanted(lines)] == ["nvidia-cudnn-cu12", "nvidia-nccl-cu12"]


def test_an_all_reduce(tmp_path):
    def found(**fields):
        place = dataclasses.replace(here(tmp_path), all_reduce=AllReduceResult(**fields))
        return list(all_reduce.check(place))

    assert list(all_reduce.check(here(tmp_path))) == []  # none was tried
    (well,) = found(speed=Speed(seconds=0.001, rate=1e9))
    assert well.what == (
        "two processes here: 1 ms for one number, 1 GB/s; 25.6 million parameters (102 MB of "
        "gradients) take 103 ms of each step on 2 workers"
    )
    (bad,) = found(error="Connection refused")
    assert bad.verdict == "error"
    assert "Connection refused" in bad.what


def test_ports_and_names(tmp_path):
    ports, name, exposure = network.check(here(tmp_path))
    assert exposure.verdict in ("ok", "warning")
    assert ports.verdict == "ok"
    assert name.verdict in ("ok", "warning")


@pytest.mark.parametrize(
    ("addresses", "verdict", "named"),
    [
        (["127.0.0.1", "::1", "fe80::1%eth0"], "ok", []),
        (["127.0.0.1", "10.0.0.7"], "ok", ["10.0.0.7"]),
        (
            ["10.0.0.7", "8.8.4.4", "2a00:1450::5"],
            "warning",
            ["10.0.0.7", "8.8.4.4", "2a00:1450::5"],
        ),
    ],
)
def test_the_exposure_of_workers_to_other_hosts(addresses, verdict, named):
    result = network.exposure(addresses, (40000, 50000))
    assert result.verdict == verdict
    assert [address for address in addresses if address in result.what] == named
    assert (result.fix is not None) == bool(named)
    assert not named or "tcp dport 40000-50000" in result.fix


def test_the_resource_limits():
    assert hardware.memory(8 << 30).what == "8.0 GiB free, for about 8 workers"
    assert hardware.memory(100 << 20).verdict == "error"
    assert hardware.open_files(256, 4096).fix == "ulimit -n 1024"
    assert hardware.open_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY).verdict == "ok"
    assert hardware.shared_memory(16 << 20).verdict == "warning"


def test_the_run_directory_is_writable(tmp_path):
    (result,) = storage.check(here(tmp_path))
    assert result.verdict != "error"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_writable(tmp_path):
    tmp_path.chmod(0o500)
    (result,) = storage.check(here(tmp_path))
    assert result.verdict == "error"


def test_a_file_instead_of_the_run_directory(tmp_path):
    (tmp_path / "runs").touch()
    (result,) = storage.check(here(tmp_path))
    assert result.verdict == "error"


def test_fit_and_invalid():
    assert is_passing([ok("a", "b"), warning("a", "b")])
    assert not is_passing([ok("a", "b"), failed("a", "b", "c")])
    assert len(set(CHECKS)) == len(CHECKS)


def test_the_tensorflow_report_survives_json():
    libraries = (lib("cudnn", "nvidia-cudnn-cu12", "missing"), lib("cuda"))
    output = TensorFlowInfo(gpus=("GPU:0",), has_cuda=True, horovod="gloo", libraries=libraries)
    assert TensorFlowInfo.from_fields(json.loads(output.to_json())) == output


def test_options_that_contradict_each_other():
    from typer.testing import CliRunner

    from phalanx.cli.app import app

    for words, says in [
        (["train.py"], "looks at a script for a kind of machine; found 'train.py'"),
        (["--target", "tpu", "--json"], "--json, --cluster, --hosts"),
        (["--target", "tpu", "--hosts", "a,b"], "are for machines. Leave them out"),
        (["--target", "tpu"], "looks at a script; found none"),
        (["--hosts", "a,b"], "are for all hosts together. Add --cluster"),
        (["--cluster", "--hosts", "a", "--node-rank", "0"], "found one host by hosts"),
        (["--model-parameters", "0"], "must be a number such as 1000000, 25.6M or 7B; found '0'"),
    ]:
        result = CliRunner().invoke(app, ["doctor", *words])
        assert isinstance(result.exception, ConfigurationError)
        assert says in str(result.exception)


def command(tmp_path, *words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "doctor", *words],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.full
def test_the_command(tmp_path):
    done = command(tmp_path, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["fit"] is True
    kinds = {result["check"] for result in found["results"]}
    expected = {"versions", "CPU", "GPUs", "Horovod", "cluster", "ports", "memory", "all-reduce"}
    assert kinds >= expected
    assert all(result["fix"] for result in found["results"] if result["verdict"] == "error")


@pytest.mark.full
def test_the_command_on_a_machine_that_is_not_fit(tmp_path):
    done = command(tmp_path, TF_CONFIG="{", KERAS_BACKEND="jax")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "error   versions: KERAS_BACKEND is 'jax'" in done.stdout
    assert "fix: export KERAS_BACKEND=tensorflow" in done.stdout
    assert done.stdout.rstrip().endswith("not fit for training")
