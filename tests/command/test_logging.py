"""A script's `logging` under `phalanx run`: as a whole command, with two workers."""

import pytest

SCRIPT = """
import logging
import sys

log = logging.getLogger("train")
log.info("loaded")
log.warning("slow")
log.warning("slow")
logging.basicConfig(level=logging.INFO, format="%(rank)d: %(message)s")
log.info("own")
"""


@pytest.mark.full
def test_the_chief_at_info_the_others_at_warning(command):
    done = command.run("--workers", "2", "--tee", "all", command.script(SCRIPT))
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if "phalanx: " not in line]
    assert [line for line in lines if line.startswith("[worker 0]")] == [
        "[worker 0] INFO train: loaded",
        "[worker 0] WARNING train: slow",
        "[worker 0] 0: own",
    ]
    assert [line for line in lines if line.startswith("[worker 1]")] == [
        "[worker 1] WARNING train: slow",
        "[worker 1] 1: own",
    ]
