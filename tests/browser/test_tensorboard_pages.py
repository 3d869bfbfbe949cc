"""What a person sees who opens TensorBoard on what `phalanx.callbacks.tensorboard_writer` wrote."""

import browsing
import numpy as np
import pytest

from phalanx.callbacks.tensorboard_writer import TensorBoardRun

pytestmark = pytest.mark.full

RUNS = ["worker-0", "worker-1", "global"]
TAGS = ["gradients/norm", "loss"]
HISTOGRAM = "gradients/dense/kernel"
CHARTS = {"Training": {"Loss of every worker": ["loss"], "Gradient norm": ["gradients/norm"]}}


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """Two workers and their aggregate, as a gradient logger would leave them."""
    directory = tmp_path_factory.mktemp("tensorboard")
    for number, name in enumerate(RUNS):
        random = np.random.default_rng(number)
        with TensorBoardRun(directory / name) as run:
            if name == "global":
                run.layout(CHARTS)
            for step in range(0, 100, 5):
                loss = np.exp(-step / 40) + 0.05 * random.normal()
                run.scalars(step, {"loss": loss, "gradients/norm": 3 * loss + number})
                gradient = random.normal(0, 2 * loss + 0.1, 2000)
                counts, edges = np.histogram(gradient, bins=30)
                buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
                run.histograms(step, {HISTOGRAM: buckets})
    return directory


@pytest.fixture(scope="module")
def url(logdir, tensorboard_server):
    return tensorboard_server(logdir)


def test_the_scalars_of_every_worker_are_seen(url, tmp_path, page_text_and_screenshot):
    page_text_and_screenshot(f"{url}#scalars", tmp_path / "scalars.png", RUNS + TAGS)
    assert (tmp_path / "scalars.png").stat().st_size > 10_000


def test_the_histogram_is_seen(url, tmp_path, page_text_and_screenshot):
    png = tmp_path / "histograms.png"
    page_text_and_screenshot(f"{url}#histograms", png, [*RUNS, HISTOGRAM])
    assert png.stat().st_size > 10_000


def test_the_layout_is_seen(url, tmp_path, page_text_and_screenshot):
    shown = [*RUNS, "Training", *CHARTS["Training"]]
    png = tmp_path / "custom_scalars.png"
    page_text_and_screenshot(f"{url}#custom_scalars", png, shown)
    assert png.stat().st_size > 10_000


def test_what_is_not_on_the_page_is_not_seen(url, tmp_path, page_text_and_screenshot, monkeypatch):
    for seconds in (5.0, 30.0, 180.0):  # until the page shows all else in time
        monkeypatch.setattr(browsing, "PAGE_SECONDS", seconds)
        with pytest.raises(browsing.BrowsingError) as caught:
            page_text_and_screenshot(f"{url}#scalars", tmp_path / "x.png", [*RUNS, HISTOGRAM])
        if not any(name in str(caught.value).split(" (see ")[0] for name in RUNS):
            break
    assert f"does not show ['{HISTOGRAM}']" in str(caught.value)


def test_a_missing_browser_is_said_and_how_to_get_it(monkeypatch, tmp_path):
    for tool in ("sh", "id"):
        (tmp_path / tool).symlink_to(browsing.shutil.which(tool))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(browsing.BrowsingError, match="no apt-get: install both by hand"):
        browsing.ensure_chromium()
