#!/bin/sh
# Ray with its job server, which tests/cluster starts on loopback; does nothing where it is there,
# and says so where it cannot be installed: those tests are skipped then.
#
#   sh scripts/install_ray.sh [VENV]          # default: .venv
set -eu

venv=${1:-.venv}
"$venv/bin/python" -c 'import ray, aiohttp_cors' 2>/dev/null && exit 0
here=$(mktemp)
trap 'rm -f "$here"' EXIT
# What is there stays as it is: the other tests have been run with it.
"$venv/bin/pip" freeze --exclude-editable --disable-pip-version-check >"$here"
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -c "$here" 'ray[default]>=2.40' >&2; then
    echo "SKIPPED: the tests with Ray. It could not be installed here; see above." >&2
fi
