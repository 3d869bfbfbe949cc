#!/bin/sh
# Run the tests that need Horovod, after building it; where it cannot be built, say so and go on.
#
#   sh scripts/test_horovod.sh [VENV]           # default: .venv
set -eu
venv=${1:-.venv}
if ! "$venv/bin/python" -c 'import horovod.tensorflow' 2>/dev/null; then
    if ! sh "$(dirname "$0")/build_horovod.sh" "$venv"; then
        echo "SKIPPED: the Horovod tests. Horovod could not be built here; see above." >&2
        exit 0
    fi
fi
exec "$venv/bin/python" -m pytest -n 2 --dist loadscope -m "horovod and not full"
