"""What all tests share: replicas, workers, and a look at what is left at the end."""

import functools
import itertools
import os
import signal
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from phalanx.launcher.forkserver import SERVER_MODULE, SHARED_VARIABLE, ForkServer
from phalanx.launcher.parent_death import tied_to_this_process

SESSION_VARIABLE = "PHALANX_TEST_SESSION"
"""Every process that a test starts inherits it, so the strays among them can be found."""

ENDING_SECONDS = 5
"""Seconds that a process may take to end after it was signalled."""

RECEIVED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Not SIGHUP: under nohup the session is to outlive its terminal, with all that it starts."""

HERE = Path(__file__).parent
KEPT: set[int] = set()
"""Processes that outlive a test, as the session keeps them itself."""

LOGICAL_CPUS = 3
KEY_BASES = itertools.count(0, 100_000)

# The same examples everywhere, however slow the machine is.
settings.register_profile(
    "phalanx", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("phalanx")


def pytest_addoption(parser):
    parser.addoption(
        "--write-snapshots", action="store_true", help="write the pages that tests compare whole"
    )


@pytest.fixture
def snapshot(request):
    """Hold a page of text, as a whole, against its file in `snapshots/` beside the test.

    `pytest --write-snapshots` writes that file; a change to it is read like one to code.
    """

    def same(name, text):
        file = request.path.parent / "snapshots" / f"{name}.txt"
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        if request.config.getoption("--write-snapshots"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        assert file.exists(), f"{file} is missing: pytest --write-snapshots writes it"
        assert text == file.read_text(), f"not as in {file.name}; see pytest --write-snapshots"

    return same


def pytest_configure(config):
    receive_signals()
    os.environ[SESSION_VARIABLE] = uuid.uuid4().hex
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def receive_signals():
    """Take signals as in a terminal, and let what the tests start inherit that.

    A script's shell has what it starts in the background ignore SIGINT and SIGQUIT, and so would
    every process that a test interrupts.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RECEIVED)
    for number in RECEIVED:
        if signal.getsignal(number) == signal.SIG_IGN:
            is_control_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_control_c else signal.SIG_DFL)


def split_the_cpu():
    """Three logical CPU devices; too late once TensorFlow has run its first op."""
    import tensorflow as tf

    # TensorFlow numbers every strategy's collectives from the same start, so two of different
    # sizes in one process clash; its own tests move the start, as this does.
    tf.distribute.MirroredStrategy._collective_key_base = property(lambda _: next(KEY_BASES))
    (cpu,) = tf.config.list_physical_devices("CPU")
    if tf.config.get_logical_device_configuration(cpu) is None:
        devices = [tf.config.LogicalDeviceConfiguration() for _ in range(LOGICAL_CPUS)]
        tf.config.set_logical_device_configuration(cpu, devices)


FIRST = (
    "cluster", "command", "trackers", "parameter_server", "browser", "horovod", "workers",
    "storage", "equivalence", "examples", "docs", "chaos", "doctor", "replicas", "unit",
)  # fmt: skip
"""Folders in the order in which they are started: what waits first, and what fills gaps last."""


def pytest_collection_modifyitems(items):
    def order(item):
        folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
        return FIRST.index(folder) if folder in FIRST else len(FIRST)

    items.sort(key=order)


def pytest_xdist_make_scheduler(config, log):
    return ModuleScheduling(config, log)


class ModuleScheduling(LoadScopeScheduling):
    """A module, or class, in one process; all clusters in one, since they share addresses."""

    def _split_scope(self, nodeid):
        return "cluster" if nodeid.startswith("tests/cluster/") else super()._split_scope(nodeid)


def pytest_runtest_setup(item):
    if item.get_closest_marker("horovod") and find_spec("horovod.tensorflow") is None:
        pytest.skip("Horovod is not built here: make test-horovod")
    # Before the first test that could run an op, but without importing TensorFlow for
    # those that need none.
    if "tensorflow" in sys.modules:
        split_the_cpu()


def mirrored(count):
    split_the_cpu()
    import tensorflow as tf

    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(count)])


@pytest.fixture(scope="session")
def mirrored1():
    """One replica, whose variables are replicated all the same."""
    return mirrored(1)


@pytest.fixture(scope="session")
def mirrored2():
    """Two replicas in this process."""
    return mirrored(2)


@pytest.fixture(scope="session")
def mirrored3():
    """Three replicas in this process."""
    return mirrored(3)


@pytest.fixture(scope="module")
def pool():
    """`pool(2, **options)` makes a `WorkerPool`; asked again, it gives the module's same one."""
    from phalanx.testing import WorkerPool

    with ExitStack() as stack:
        yield functools.cache(lambda *args, **kw: stack.enter_context(WorkerPool(*args, **kw)))


@pytest.fixture(scope="session")
def shared_fork_server(tmp_path_factory):
    """Where the commands of this session fork their workers from, which saves the imports.

    Its value is the environment variable that says so. What a cold start does is for tests that
    leave it out.
    """
    address = tmp_path_factory.mktemp("fork-server") / "socket"
    command = (sys.executable, "-P", "-m", SERVER_MODULE, "-" * 1000)  # room for what `ps` shows
    env = tied_to_this_process({**os.environ, "PYTHONHASHSEED": "0"})
    server = ForkServer.start(command, env=env, address=address)
    KEPT.add(server.pid)
    try:
        server.wait_until_ready()
        yield {SHARED_VARIABLE: str(address)}
    finally:
        server.close()
        KEPT.discard(server.pid)


def pytest_sessionfinish(session):
    if getattr(session.config.option, "numprocesses", None):
        return  # Under xdist each of its processes looks after its own.
    left = strays()
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        lines = [f"A test left {len(left)} process(es) running:", *left]
        if reporter is None:
            print(*lines, sep="\n", file=sys.stderr)
            return
        for line in lines:
            reporter.write_line(line, red=True)


def strays():
    """The processes that tests started and did not end, which are ended now."""
    end = time.monotonic() + ENDING_SECONDS
    while (found := still_running()) and time.monotonic() < end:
        time.sleep(0.1)
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    return [f"  {process.pid}: {command}" for process, command in found.items()]


def still_running():
    """Processes of this session by their command lines, but those that it keeps itself."""
    pool = sys.modules.get("phalanx.testing.pool")
    expected = {os.getpid(), *KEPT, pool.fork_server_pid() if pool else None}
    left = {}
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(SESSION_VARIABLE) == os.environ[SESSION_VARIABLE]
            if process.pid in expected or not ours:
                continue
            command = " ".join(process.cmdline())
            if "multiprocessing.resource_tracker" in command:
                continue  # Python's own, and it ends with us.
            left[process] = command
        except psutil.Error:
            continue  # Ended meanwhile, a zombie, or somebody else's.
    return left
