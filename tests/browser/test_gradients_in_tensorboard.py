"""What a person sees in TensorBoard after a run of two workers with a gradient logger."""

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.monitoring.tensorboard_files import read_histograms, read_scalars

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).with_name("gradient_run.py")
WORKERS = ["worker-0", "worker-1"]
RUNS = [*WORKERS, "global"]
HISTOGRAM = "gradient/cnn/head/kernel"
OF_EACH_WORKER = ["gradients/cosine_similarity", "gradients/norm"]
OF_THE_TOTAL = ["gradients/clipped_norm", "gradients/clip_fraction", "gradients/noise_scale"]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """The TensorBoard directory of a run."""
    runs = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "phalanx", "run", "--workers", "2", "--seed", "7"]
    command += ["--run-dir", str(runs), "--name", "gradients", str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return runs / "gradients" / "tensorboard"


@pytest.fixture(scope="module")
def url(logdir, tensorboard_server):
    return tensorboard_server(logdir)


def test_the_files_hold_what_the_page_will_show(logdir):
    steps = list(range(1, 321, 10))
    for name in WORKERS:
        scalars = read_scalars(logdir / name)
        assert set(OF_EACH_WORKER) <= set(scalars)
        assert not set(OF_THE_TOTAL) & set(scalars)
        assert [step for step, _ in scalars["gradients/norm"]] == steps
    total = read_scalars(logdir / "global")
    assert {"gradients/norm", *OF_THE_TOTAL} <= set(total)
    assert "update_ratio/cnn/head/kernel" in total
    for name in RUNS:
        histogram = read_histograms(logdir / name)[HISTOGRAM]
        assert [step for step, _ in histogram] == steps
        assert {float(buckets[:, 2].sum()) for _, buckets in histogram} == {320.0}


def test_the_scalars_of_the_workers_and_of_the_total(url, tmp_path, page_text_and_screenshot):
    shown = [*RUNS, *OF_EACH_WORKER, *OF_THE_TOTAL]
    page_text_and_screenshot(
        f"{url}#scalars&tagFilter=gradients%2F", tmp_path / "scalars.png", shown
    )
    assert (tmp_path / "scalars.png").stat().st_size > 10_000


def test_the_histograms(url, tmp_path, page_text_and_screenshot):
    page_text_and_screenshot(f"{url}#histograms", tmp_path / "histograms.png", [*RUNS, HISTOGRAM])
    assert (tmp_path / "histograms.png").stat().st_size > 10_000


def test_the_page_of_its_own(url, tmp_path, page_text_and_screenshot):
    shown = [*RUNS, "Gradients", "Norm, each worker and the total", "Agreement of workers"]
    page_text_and_screenshot(f"{url}#custom_scalars", tmp_path / "custom.png", shown)
    assert (tmp_path / "custom.png").stat().st_size > 10_000
