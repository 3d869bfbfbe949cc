#!/bin/sh
# KerasHub, KerasRS and KerasTuner, which tests/examples/test_libraries.py trains with; does nothing
# where they are there, and says so where they cannot be installed: those tests are skipped then.
#
#   sh scripts/install_keras_libraries.sh [VENV]          # default: .venv
set -eu

venv=${1:-.venv}
"$venv/bin/python" - <<'EOF' && exit 0
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(f"keras_{name}") is None for name in ("hub", "rs", "tuner")))
EOF
here=$(mktemp)
trap 'rm -f "$here"' EXIT
# What is there stays as it is: the other tests have been run with it. KerasHub asks for
# tensorflow-text, and so for another TensorFlow, which only its tokenizers need.
"$venv/bin/pip" freeze --exclude-editable --disable-pip-version-check >"$here"
if ! { "$venv/bin/pip" install --quiet --disable-pip-version-check -c "$here" \
           regex tokenizers sentencepiece kagglehub kt-legacy requests &&
       "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
           'keras-hub>=0.32' 'keras-rs>=0.4' 'keras-tuner>=1.4'; } >&2; then
    echo "SKIPPED: the tests with Keras's libraries. They could not be installed; see above." >&2
fi
