"""What the launcher starts: `python -m phalanx.worker -f script.py ...` or `-m module ...`."""

from __future__ import annotations

import os
import sys

from phalanx.launcher.parent_death import die_with_launcher

if __name__ == "__main__":
    # Before the imports, which take seconds: the launcher may go meanwhile.
    die_with_launcher(os.environ)
    from phalanx.worker.bootstrap import main

    main(sys.argv[1:], os.environ)
