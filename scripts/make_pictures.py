"""Make all pictures of docs/images again, from real runs.

    python scripts/make_pictures.py [NAME ...]

Needs Chromium (scripts/install_chromium.sh) and the development environment. NAME is one of
tensorboard, timeline, report and clipping; the default is all. Their programs are in tests/browser
and examples/.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = "docs/images"
PROGRAMS = {
    "tensorboard": ["tests/browser/tensorboard_images.py"],
    "timeline": ["tests/browser/timeline_image.py"],
    "report": ["tests/browser/report_images.py"],
    "clipping": [
        "examples/exploding_gradients.py",
        "--plot",
        "docs/images/exploding_gradients.png",
    ],
}


def main() -> None:
    names = sys.argv[1:] or list(PROGRAMS)
    unknown = set(names) - set(PROGRAMS)
    if unknown:
        raise SystemExit(f"No such pictures: {sorted(unknown)}. There are {sorted(PROGRAMS)}.")
    for name in names:
        print(f"{name}: {' '.join(PROGRAMS[name])}", flush=True)
        subprocess.run([sys.executable, *PROGRAMS[name]], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
