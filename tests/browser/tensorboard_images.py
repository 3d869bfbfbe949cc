"""Write the pictures of TensorBoard: `python tests/browser/tensorboard_images.py`.

They show a real run of two workers (`gradient_run.py`).
"""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from browsing import chromium, look, serving

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SCRIPT = Path(__file__).with_name("gradient_run.py")
PAGES = {
    "scalars": ("#scalars&tagFilter=gradients%2F", "gradients/norm"),
    "histograms": ("#histograms", "gradient/cnn/head/kernel"),
    "custom": ("#custom_scalars", "Agreement of workers"),
}


def main():
    command = [sys.executable, "-m", "phalanx", "run", "--workers", "2", "--seed", "7"]
    command += ["--name", "gradients", str(SCRIPT)]
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        subprocess.run(command, check=True)
        # TensorBoard shows the path as it is given.
        with serving(Path("runs/gradients/tensorboard")) as url, chromium() as browser:
            for name, (page, shown) in PAGES.items():
                look(browser, url + page, IMAGES / f"tensorboard-{name}.png", ["global", shown])


if __name__ == "__main__":
    main()
