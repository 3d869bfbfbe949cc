"""Does training on two replicas give the answer of one device?

    python benchmarks/equivalence.py                the table, in some minutes
    python benchmarks/equivalence.py adam auc       these cases only
    python benchmarks/equivalence.py --gpu          the same, with all replicas on one GPU

Every case of the equivalence tests is trained by plain Keras 3 on one device, and then by
plain Keras 3 and by Phalanx on two replicas: in one process (MirroredStrategy on logical
CPU devices) and in two (MultiWorkerMirroredStrategy). The exit code is 1 if Phalanx is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from equivalence.cases import chosen
from equivalence.table import COLUMNS, as_data, markdown, show
from equivalence.trainings import mirrored, multiworker, on_one_device
from equivalence.verdict import judge
from installed import version_of
from markers import replace_between
from progress import report

PAGE = Path(__file__).parents[1] / "docs" / "equivalence-table.md"


def main() -> int:
    options = _options()
    cases = chosen()
    names = options.cases or list(cases)
    report("one device")
    expected = on_one_device(names, gpu=options.gpu)
    got = {}
    columns = [c for c in COLUMNS if not options.phalanx_only or c.startswith("phalanx")]
    for column in columns:
        report(COLUMNS[column])
        system, kind = column.split("-")
        train = mirrored if kind == "mirrored" else multiworker
        got[column] = train(names, system, gpu=options.gpu)
    report("")
    verdicts = {
        name: {c: judge(cases[name], expected[name], got[c][name]) for c in columns}
        for name in names
    }
    title = f"Two replicas against one {'GPU' if options.gpu else 'device'}: {_versions()}"
    if options.json:
        print(json.dumps(as_data(verdicts), indent=2))
    elif options.markdown:
        print(markdown(verdicts))
    else:
        show(verdicts, title)
    if options.write:
        replace_between(PAGE, "equivalence", f"{title}.\n\n{markdown(verdicts)}")
    ours = [c for c in columns if c.startswith("phalanx")]
    return int(not all(cells[c].right for cells in verdicts.values() for c in ours))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="case", help="names of cases; all if none")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print all that is known")
    parser.add_argument("--write", action="store_true", help=f"update docs/{PAGE.name}")
    parser.add_argument("--gpu", action="store_true", help="train on a GPU, which replicas share")
    parser.add_argument(
        "--phalanx-only", action="store_true", help="with --json: leave Keras on replicas out"
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.cases) - set(chosen())):
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(chosen())}")
    if options.phalanx_only and not options.json:
        parser.error("--phalanx-only leaves columns of the table empty; give --json with it")
    if options.write and (options.cases or options.gpu):
        parser.error("--write takes the whole table, on CPUs; leave cases and --gpu out")
    return options


def _versions() -> str:
    keras, tensorflow = (
        version_of("keras", "keras-nightly"),
        version_of("tensorflow", "tensorflow-cpu"),
    )
    return f"Keras {keras}, TensorFlow {tensorflow}, Phalanx {version_of('phalanx')}"


if __name__ == "__main__":
    sys.exit(main())
