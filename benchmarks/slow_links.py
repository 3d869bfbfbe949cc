"""How long is a step of two workers whose link is slow, in one piece and in buckets?

    python benchmarks/slow_links.py                         200 Mbit/s and 1 Gbit/s, some minutes
    python benchmarks/slow_links.py --write                 the same, and docs/benchmarks.md with it
    python benchmarks/slow_links.py --rates 200mbit --compute wait
    python benchmarks/slow_links.py --rates 100mbit 200mbit 500mbit 1gbit 2gbit --compute wait \\
        --compute-ms 400 --plot docs/images/step_time_by_link.png

Two workers with a core each, in network namespaces whose link has a token bucket; needs root. The
model is 8 like layers of 40 MB in all. Computing is made as long as sending: by the number of rows,
or, with `--compute wait`, by waiting, which takes no core and so shows less noise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markers import replace_between
from progress import report
from slow_links.link import ADDRESSES, link
from slow_links.plot import plot
from slow_links.ways import WAYS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
PORT = 23456
ALONE = ("computing alone", "sending alone, float32", "sending alone, bfloat16")
BASE = "float32, one piece"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One link's figures.

    Attributes:
        rate: as `tc` takes it.
        compute: "multiply" or "wait".
        compute_ms: computing of a step where it is not made as long as sending.
        milliseconds: of each step or short `fit`, by what was measured.
    """

    rate: str
    compute: str
    compute_ms: float | None
    milliseconds: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """Milliseconds a step."""
        return statistics.median(self.milliseconds[name])

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each way, with the longer of computing and sending as the unit."""
        longer = max(self.median("computing alone"), self.median("sending alone, float32"))
        base = self.median(BASE)
        rows = [(name, f"{self.median(name):.0f}", "", "") for name in ALONE]
        for name in (each for each in WAYS if each in self.milliseconds):
            took = self.median(name)
            rows.append((name, f"{took:.0f}", f"{took / longer:.2f}", f"{took / base - 1:+.0%}"))
        return rows


COLUMNS = ("", "ms per step", "times the longer of both", "vs. one piece of float32")


def measure(rate: str, options: argparse.Namespace) -> Measured:
    """Start both workers on a link of `rate`, and wait for their figures."""
    names_of_options = ("compute", "compute_ms", "rounds", "steps", "ways")
    requested = json.dumps({name: getattr(options, name) for name in names_of_options})
    addresses = [f"{address}:{PORT}" for address in ADDRESSES]
    workers = []
    with link(rate) as names:
        for rank, name in enumerate(names):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            environment = {
                **os.environ,
                "TF_CONFIG": json.dumps(task),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": str(HERE),
            }
            command = ["ip", "netns", "exec", name, *_core(rank), sys.executable]
            command += ["-m", "slow_links.worker", requested]
            output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            workers.append(subprocess.Popen(command, env=environment, stdout=output, text=True))
        try:
            printed, _ = workers[0].communicate()
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()
    if not printed.strip():
        raise RuntimeError(f"The workers on a link of {rate} ended without figures; see above.")
    return Measured(
        rate=rate,
        compute=options.compute,
        compute_ms=options.compute_ms,
        milliseconds=json.loads(printed.strip().splitlines()[-1]),
    )


def _core(rank: int) -> list[str]:
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[rank % len(cores)])]


def markdown(measured: Sequence[Measured]) -> str:
    """A table for each link."""
    lines = []
    for one in measured:
        how = "multiplies matrices" if one.compute == "multiply" else "waits"
        long = f"{one.compute_ms:g} ms" if one.compute_ms else "about as long as it sends"
        lines += [f"**{one.rate}**, a step {how} {long}:", ""]
        lines += [_line(COLUMNS), "|---" + "|---:" * 3 + "|", *map(_line, one.rows()), ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and the namespaces end
    measured = []
    for rate in options.rates:
        report(f"{rate}: two workers, {options.rounds} rounds")
        measured.append(measure(rate, options))
    if options.json:
        print(json.dumps([_as_data(one) for one in measured], indent=2))
    else:
        print(markdown(measured))
    if options.plot:
        medians = [(one.rate, {n: one.median(n) for n in one.milliseconds}) for one in measured]
        plot(medians, options.plot)
    if options.write:
        about = (
            f"Medians of {options.rounds} rounds of {options.steps} steps, in turn:\n"
            f"`{' '.join(['python benchmarks/slow_links.py', *sys.argv[1:]])}`, as root."
        )
        replace_between(PAGE, "slow-links", f"{about}\n\n{markdown(measured)}")


def _as_data(one: Measured) -> dict[str, Any]:
    return {"rate": one.rate, "compute": one.compute, "milliseconds": one.milliseconds}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", nargs="+", default=["200mbit", "1gbit"], help="as tc takes them")
    parser.add_argument("--compute", choices=("multiply", "wait"), default="multiply")
    parser.add_argument(
        "--compute-ms",
        type=float,
        help="with --compute wait: computing of a step, the same on each link",
    )
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=list(WAYS), help="what to compare"
    )
    parser.add_argument("--plot", type=Path, help="a picture of the time of a step by link")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of a round")
    parser.add_argument("--json", action="store_true", help="every round's figure")
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    options = parser.parse_args()
    if options.compute_ms and options.compute != "wait":
        parser.error("--compute-ms is for --compute wait")
    if BASE not in options.ways:
        parser.error(f"--ways needs {BASE!r}, which the others are compared with")
    return options


if __name__ == "__main__":
    main()
