"""Starts a launcher whose life is tied to the Ray process that asks for it.

`python -m phalanx.submit.ray_driver.launcher_process PID PROGRAM ...`: where a node loses its
cluster, Ray ends its processes there, and their launchers and workers must end with them.
"""

from __future__ import annotations

import os
import sys

from phalanx.launcher.parent_death import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
