"""The first ten minutes of a newcomer, in a fresh environment, with the time of each step.

    python scripts/first_ten_minutes.py [WHEEL]   # default: the wheel in dist/, of `make package`

Needs Python alone: it makes a virtual environment in a temporary directory, installs the wheel
there with pip, and runs the commands of docs/quickstart.md. Its exit code is 1 if a step fails, or
if all of them together take longer than ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 600.0
WAIT = 240.0
"""Seconds that one step may wait for something."""

DIST = Path(__file__).parents[1] / "dist"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of all steps together")
    args = parser.parse_args()
    wheel = args.wheel or next(iter(DIST.glob("*.whl")), None)
    if wheel is None:
        parser.error(f"{DIST} has no wheel; found none given: `make package` builds it.")
    with tempfile.TemporaryDirectory() as directory:
        newcomer = Newcomer(Path(directory), wheel.resolve())
        rows = [newcomer.timed(what, step) for what, step in newcomer.steps()]
    total = sum(seconds for _, seconds in rows)
    for what, seconds in [*rows, ("all", total)]:
        print(f"{what:<56} {seconds:7.1f} s")
    if total > args.limit:
        print(f"The first steps took {total:.0f} s, more than {args.limit:.0f} s.", file=sys.stderr)
    return int(total > args.limit)


class Newcomer:
    """Somebody with an empty directory."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.wheel = wheel
        self.environment = directory / "environment"
        self.place = directory / "place"
        self.place.mkdir()
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        skipped = ("PYTHON", "PHALANX", "TF_CONFIG", "VIRTUAL_ENV")
        kept = {name: v for name, v in os.environ.items() if not name.startswith(skipped)}
        self.variables = {**kept, "PATH": path}

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ('pip install "phalanx[cpu]"', self.install),
            ("phalanx init", self.init),
            ("phalanx run --workers 1 --seed 1 train.py", self.one_worker),
            ("phalanx run --workers 2 --seed 1 train.py", self.two_workers),
            ("tensorboard --logdir runs: gradients of each worker", self.tensorboard),
            ("kill -9 a worker: it restarts and training ends well", self.kill),
            ("phalanx report", self.report),
        ]

    def timed(self, what: str, step: Callable[[], None]) -> tuple[str, float]:
        print(f"... {what}", flush=True)
        began = time.monotonic()
        step()
        return what, time.monotonic() - began

    def install(self) -> None:
        venv.create(self.environment, with_pip=True)
        self.ran("pip", "install", "--quiet", "--disable-pip-version-check", f"{self.wheel}[cpu]")

    def init(self) -> None:
        printed = self.ran("phalanx", "init").splitlines()
        check(printed[-1] == "phalanx report", f"phalanx init printed {printed}")

    def one_worker(self) -> None:
        words = ("phalanx", "run", "--workers", "1", "--seed", "1", "--name", "one", "train.py")
        self.losses = losses(self.ran(*words))
        check(len(self.losses) == 8, f"expected 8 losses; found {self.losses}")

    def two_workers(self) -> None:
        words = ("phalanx", "run", "--workers", "2", "--seed", "1", "--name", "two", "train.py")
        found = losses(self.ran(*words))
        apart = [abs(a - b) / a for a, b in zip(self.losses, found, strict=True)]
        check(max(apart) < 1e-2, f"losses of one worker {self.losses}, of two workers {found}")

    def tensorboard(self) -> None:
        """Its server, asked as its pages ask it, until it knows the gradients of all workers."""
        with (self.place / "tensorboard.log").open("w+") as log:
            words = ["tensorboard", "--logdir", "runs", "--host", "127.0.0.1", "--port", "0"]
            server = self.start(words, log)
            try:
                wait_for(lambda: self.gradients_shown(log), "gradients in TensorBoard")
            finally:
                server.terminate()
                server.wait(30)

    def gradients_shown(self, log: Any) -> bool:
        log.seek(0)
        address = re.search(r"http://127\.0\.0\.1:\d+/", log.read())
        if address is None:
            return False
        url = f"{address[0]}data/plugin/scalars/tags"
        with urllib.request.urlopen(url, timeout=60) as answer:
            tags = json.load(answer)
        runs = [f"two/tensorboard/{name}" for name in ("global", "worker-0", "worker-1")]
        return all("gradients/norm" in tags.get(run, {}) for run in runs)

    def kill(self) -> None:
        """While a longer run trains, after its first checkpoint."""
        words = ["phalanx", "run", "--workers", "2", "--max-restarts", "3", "--name", "killed"]
        run = self.place / "runs" / "killed"
        with (self.place / "killed.log").open("w+") as log:
            launcher = self.start([*words, "train.py", "--epochs", "60"], log)
            try:
                wait_for(
                    lambda: launcher.poll() is not None or any(run.glob("checkpoints/*/*.json")),
                    "the first checkpoint",
                )
                started = next(e for e in events(run) if e["kind"] == "attempt_start")
                os.kill(started["workers"][1]["pid"], signal.SIGKILL)
                code = launcher.wait(WAIT)
            finally:
                if launcher.poll() is None:
                    launcher.terminate()
                    launcher.wait(60)
            log.seek(0)
            check(code == 0, f"the killed run ended with {code}:\n{log.read()}")

    def report(self) -> None:
        self.ran("phalanx", "report", "killed")
        page = self.place / "runs" / "killed" / "report.html"
        check("<html" in page.read_text(), f"{page} is no page")
        (run,) = json.loads(self.ran("phalanx", "report", "killed", "--json"))["runs"]
        summary = run["summary"]
        seen = (summary["state"], summary["attempts"], summary["epochs"])
        check(seen == ("ended well", 2, 60), f"the report says {seen}")

    def start(self, words: list[str], log: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.environment / "bin" / words[0]), *words[1:]],
            cwd=self.place,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ran(self, *words: str) -> str:
        """What a command prints to standard output; it must end well."""
        done = subprocess.run(
            [str(self.environment / "bin" / words[0]), *words[1:]],
            cwd=self.place,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        check(done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}{done.stderr}")
        return done.stdout


def losses(text: str) -> list[float]:
    """Of training and validation, by epoch."""
    return [float(value) for value in re.findall(r"loss: (\d\S*)", text)]


def events(run: Path) -> list[dict[str, Any]]:
    lines = (run / "records" / "launcher.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        check(time.monotonic() < end, f"{what}: not within {WAIT:.0f} s")
        time.sleep(0.2)


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    sys.exit(main())
