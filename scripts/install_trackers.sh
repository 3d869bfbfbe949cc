#!/bin/sh
# wandb, MLflow, Comet, Trackio and Aim, to which tests/trackers sends runs, in an environment of
# their own over VENV's packages: some need other versions of packages that VENV has. Does nothing
# where they are there, and says so where they cannot be installed: those tests are skipped then.
#
#   sh scripts/install_trackers.sh [VENV]          # default: .venv
set -eu

venv=${1:-.venv}
own=$venv/trackers
if [ ! -x "$own/bin/python" ]; then
    "$venv/bin/python" -m venv "$own"
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for site in "$own"/lib/python*/site-packages; do
        echo "import site; site.addsitedir('$packages')" >"$site/venv.pth"
    done
fi
for package in wandb mlflow comet_ml trackio aim; do
    "$own/bin/python" - "$package" <<'EOP' && continue
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    version(sys.argv[1])
except PackageNotFoundError:
    sys.exit(1)
EOP
    if ! "$own/bin/pip" install --quiet --disable-pip-version-check "$package" >&2; then
        echo "SKIPPED: the tests with $package. It could not be installed here; see above." >&2
    fi
done
