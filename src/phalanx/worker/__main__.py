"""What the launcher starts: `python -m phalanx.worker -f script.py ...` or `-m module ...`."""

from __future__ import annotations

import os
import sys

from phalanx.worker.bootstrap import main

if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
