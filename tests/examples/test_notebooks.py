"""The notebooks of examples/, each run in a kernel with two workers on CPUs."""

import asyncio
import os
import signal
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = EXAMPLES / "notebooks"
INTERRUPT_SECONDS = 5.0
SMALL = {"WORKERS": 2, "EPOCHS": 1, "LIMIT": 512, "DATA": str(EXAMPLES / "mnist.npz")}


@pytest.fixture(autouse=True)
def fast_kernels(shared_fork_server, monkeypatch):
    for name, value in shared_fork_server.items():
        monkeypatch.setenv(name, value)


def client_of(notebook, directory):
    return NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(directory)}},
    )


def example(name, directory, **more):
    """The notebook as it was run, with values of its parameters for a short training."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    (parameters,) = (
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    )
    values = SMALL | more
    names = [line.partition(" = ")[0] for line in parameters.source.splitlines()]
    parameters.source = "\n".join(f"{name} = {values[name]!r}" for name in names)
    client_of(notebook, directory).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_of(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def errors_of(cell):
    return [output for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    says = notebook.cells[0].source
    assert "tests run this notebook with two workers on CPUs" in says


def test_two_gpus_on_kaggle(tmp_path):
    *_, launch, use = example("kaggle_two_gpus.ipynb", tmp_path)
    lines = text_of(launch).splitlines()
    bars = [line for line in lines if "/4 " in line]
    assert len(bars) == 1, lines  # one progress bar, in its last state
    assert "val_accuracy" in bars[0]
    assert "epoch 1: validation accuracy" in text_of(use)
    assert (tmp_path / "mnist.keras").exists()
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_colab_continues_where_it_ended(tmp_path):
    *_, first, _ = example("colab.ipynb", tmp_path, RUNS="runs", EPOCHS=1)
    assert "Epoch 1/1" in text_of(first)
    *_, second, summary = example("colab.ipynb", tmp_path, RUNS="runs", EPOCHS=2)
    assert "Epoch 2/2" in text_of(second)
    assert "Epoch 1/2" not in text_of(second)
    assert "dense" in text_of(summary) + str(summary.outputs)
    assert len(list((tmp_path / "runs" / "mnist" / "attempts").iterdir())) == 2


def test_your_own_machine_an_error_and_a_rerun(tmp_path):
    code = example("own_machine.ipynb", tmp_path)
    failing, working, mirrored = code[-3:]
    (error,) = errors_of(failing)
    assert error.ename == "RunFailedError"
    function = code[-4]
    line = next(i for i, text in enumerate(function.source.splitlines(), 1) if "raise" in text)
    assert f"Cell In[{function.execution_count}], line {line}" in error.evalue
    assert "5 classes, but a label is 9" in error.evalue
    assert len(error.traceback) == 1  # the worker's; not the frames of the kernel
    assert errors_of(working) == []
    assert text_of(working).splitlines()[-1].startswith("[0.")
    assert "1 replicas" in text_of(mirrored)


ENDLESS = """
def train(epochs):
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((64, 4), "float32")
    return model.fit(x, x[:, :1], batch_size=16, epochs=epochs).epoch


import phalanx
"""


class Kernel:
    """A kernel whose cells run while the test looks at its processes."""

    def __init__(self, directory, *sources):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        self.notebook = nbformat.v4.new_notebook(cells=cells)
        self.client = client_of(self.notebook, directory)
        self.client.allow_errors = True

    def run(self, index):
        return self.client.async_execute_cell(self.notebook.cells[index], index)

    async def training(self, index):
        """Start a cell; gives its task, and the processes that it has started when it trains."""
        task = asyncio.ensure_future(self.run(index))
        while "Epoch 3/" not in text_of(self.notebook.cells[index]):
            assert not task.done(), self.notebook.cells[index].outputs
            await asyncio.sleep(0.05)
        started = psutil.Process(self.pid).children(recursive=True)
        # The workers are forks of the session's server, whose children they are.
        place = "phalanx.worker.notebook_call"
        workers = [p for p in psutil.process_iter() if place in " ".join(cmdline(p))]
        assert len(workers) >= 2
        return task, {*started, *workers}

    @property
    def pid(self):
        return self.client.km.provisioner.pid


def cmdline(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def seconds_until_none_is_left(processes, began, limit=20.0):
    while any(is_running(process) for process in processes):
        assert time.monotonic() - began < limit
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def is_running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def kernel(tmp_path):
    endless = "phalanx.launch(train, args=(10**6,), workers=2)"
    return Kernel(tmp_path, ENDLESS, endless, "phalanx.launch(train, args=(1,), workers=2)")


def test_an_interrupt_ends_the_workers_and_the_next_cell_runs(kernel):
    async def interrupted():
        async with kernel.client.async_setup_kernel():
            await kernel.run(0)
            task, processes = await kernel.training(1)
            began = time.monotonic()
            await kernel.client.km.interrupt_kernel()
            seconds = await seconds_until_none_is_left(processes, began)
            await task
            await kernel.run(2)
        return seconds

    assert asyncio.run(interrupted()) < INTERRUPT_SECONDS
    stopped, again = kernel.notebook.cells[1:]
    assert [error.ename for error in errors_of(stopped)] == ["KeyboardInterrupt"]
    assert again.outputs[-1].data["text/plain"] == "[0]"


def test_the_end_of_the_kernel_ends_the_workers(kernel):
    async def killed():
        async with kernel.client.async_setup_kernel():
            await kernel.run(0)
            task, processes = await kernel.training(1)
            began = time.monotonic()
            os.kill(kernel.pid, signal.SIGKILL)
            seconds = await seconds_until_none_is_left(processes, began)
            await asyncio.gather(task, return_exceptions=True)
        return seconds

    assert asyncio.run(killed()) < INTERRUPT_SECONDS
