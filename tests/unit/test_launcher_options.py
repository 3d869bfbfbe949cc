import pytest

from phalanx.cluster.spec import DeviceSpec
from phalanx.errors import ConfigurationError
from phalanx.launcher.options import RunOptions, parse_devices, parse_env


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "--workers must be at least 1; found 0"),
        ({"threads": 0}, "--threads-per-worker must be at least 1; found 0"),
        ({"strategy": "ring"}, "one of auto, single, mirrored, "),
        ({"strategy": "ring"}, "found 'ring'"),
        (
            {"communication_backend": "ring"},
            "communication 'ring' under strategy 'auto'. Name a strategy",
        ),
        ({"communication_backend": "mpi", "strategy": "multiworker"}, "multiworker has ring, nccl"),
        (
            {"communication_backend": "ring", "strategy": "mirrored"},
            "takes auto or nccl or hierarchical",
        ),
        ({"communication_backend": "nccl", "strategy": "single"}, "single strategy takes auto"),
        ({"tee": "some"}, "--tee must be one of all, chief, none; found 'some'"),
        ({"max_restarts": -1}, "--max-restarts must be at least 0; found -1"),
        ({"seed": -1}, "--seed must be 0 to 4294967295; found -1"),
        ({"seed": 2**32}, "found 4294967296"),
        ({"name": "a/b"}, "'a/b'"),
        ({"name": ".."}, "'..'"),
        ({"name": ""}, "''"),
        ({"workers": 2, "strategy": "mirrored"}, "--workers 1, or --strategy multiworker"),
        ({"workers": 2, "strategy": "single"}, "--workers 1, or --strategy multiworker"),
        ({"workers": 2, "devices": DeviceSpec(count=2, kind="cpu")}, "cpu:2 with 2 workers"),
        ({"workers": 1, "strategy": "single", "devices": DeviceSpec(count=2)}, "one device"),
        ({"workers": 2, "devices": DeviceSpec(count=2, kind="logical-gpu")}, "logical-gpu:2 with"),
        ({"workers": 2, "devices": DeviceSpec(count=2, kind="gpu")}, "run --workers 4 SCRIPT"),
        (
            {"strategy": "multiworker", "devices": DeviceSpec(count=2, kind="cpu")},
            "--strategy multiworker trains on one device of each worker; found "
            "--devices-per-worker cpu:2. More devices are more workers: phalanx run --workers 2 "
            "SCRIPT. In one process: phalanx run --strategy mirrored --devices-per-worker cpu:2",
        ),
        (
            {"workers": 2, "strategy": "horovod", "devices": DeviceSpec(count=2)},
            "phalanx run --strategy horovod --workers 4 SCRIPT",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_value(options, says):
    with pytest.raises(ConfigurationError) as refused:
        RunOptions(target="train.py", **options)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workers": 1, "strategy": "multiworker"},
        {"workers": 1, "strategy": "mirrored", "devices": DeviceSpec(count=2, kind="cpu")},
        {"workers": 1, "devices": DeviceSpec(count=2, kind="logical-gpu")},
        {"strategy": "multiworker", "communication_backend": "ring"},
        {"strategy": "mirrored", "communication_backend": "one-device"},
        {"devices": DeviceSpec(count=2, kind="gpu")},
        {"workers": 2, "devices": DeviceSpec(count=1, kind="cpu")},
        {"workers": 2, "strategy": "multiworker", "devices": DeviceSpec(count=1, kind="gpu")},
        {"seed": 0},
        {"seed": 2**32 - 1},
        {"name": "2026-11.first_try"},
    ],
)
def test_what_works_is_taken(options):
    RunOptions(target="train.py", **options)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("2", DeviceSpec(count=2)),
        ("cpu:2", DeviceSpec(count=2, kind="cpu")),
        ("GPU:1", DeviceSpec(count=1, kind="gpu")),
        ("logical-gpu:2", DeviceSpec(count=2, kind="logical-gpu")),
    ],
)
def test_devices(text, devices):
    assert parse_devices(text) == devices


@pytest.mark.parametrize("text", ["", "0", "cpu:0", "cpu", "tpu:1", "-1", "2:cpu", "cpu:two"])
def test_bad_devices(text):
    with pytest.raises(ConfigurationError, match="--devices-per-worker must be"):
        parse_devices(text)


def test_env():
    assert parse_env(["A=1", "B=x=y", "C=", "A=2"]) == {"A": "2", "B": "x=y", "C": ""}


@pytest.mark.parametrize("item", ["A", "=1", "1A=2", "A B=1"])
def test_bad_env(item):
    with pytest.raises(ConfigurationError, match="--env must be NAME=VALUE"):
        parse_env([item])


@pytest.mark.parametrize("item", ["my-key=s3cr3t", "=s3cr3t", "s3cr3t"])
def test_a_message_about_a_bad_env_has_no_value(item):
    with pytest.raises(ConfigurationError) as raised:
        parse_env([item])
    assert "s3cr3t" not in str(raised.value)
