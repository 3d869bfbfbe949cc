#!/bin/sh
# Build Horovod for the TensorFlow of a virtual environment, and install it there.
#
#   sh scripts/build_horovod.sh [VENV [--if-built]]          # default: .venv
#
# With --if-built it installs a wheel that an earlier call has built, and else says so.
# Horovod 0.28.1 has no wheels, and its source needs three things to build against TensorFlow
# 2.21: one header that has moved, two that are off the include path, and an older CMake. It
# is built with Gloo, for TensorFlow alone; set HOROVOD_WITH_MPI=1 where MPI is installed, and
# HOROVOD_GPU_OPERATIONS=NCCL with CUDA. The wheel is kept in $HOROVOD_WHEELS, by default
# ~/.cache/phalanx/wheels, and taken from there the next time.
set -eu

venv=$(cd "${1:-.venv}" && pwd)
version=0.28.1
python="$venv/bin/python"

if_built=${2:-}

[ -n "$if_built" ] || for tool in cc c++ make; do
    command -v "$tool" >/dev/null || {
        echo "Building Horovod needs a C++ compiler; there is no $tool here." >&2
        echo "On Debian: apt-get install build-essential" >&2
        exit 2
    }
done

# A wheel fits one TensorFlow, one Python and one choice of communication.
key=$("$python" - <<'END'
import importlib.metadata as metadata
import os
import platform
import sys

names = ("tensorflow", "tensorflow-cpu", "tensorflow-intel")
found = [n for n in names if any(d.metadata["Name"] == n for d in metadata.distributions())]
if not found:
    sys.exit("There is no TensorFlow in this environment: install it first.")
choice = [os.environ.get(n, "") for n in ("HOROVOD_WITH_MPI", "HOROVOD_GPU_OPERATIONS")]
python = f"py{sys.version_info[0]}{sys.version_info[1]}"
print("-".join([f"tf{metadata.version(found[0])}", python, platform.machine(), *filter(None, choice)]))
END
)
wheels="${HOROVOD_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/phalanx/wheels}/$key"
if [ -n "$if_built" ] && ! ls "$wheels"/horovod-$version-*.whl >/dev/null 2>&1; then
    echo "Horovod is not built here: its tests are skipped. 'make test-horovod' builds and runs them."
    exit 0
fi
mkdir -p "$wheels"

"$venv/bin/pip" install --quiet --disable-pip-version-check \
    "setuptools<81" wheel "cmake<4" packaging cloudpickle psutil pyyaml

if ! ls "$wheels"/horovod-$version-*.whl >/dev/null 2>&1; then
    include=$("$python" -c 'import importlib.util as u, pathlib as p
print(p.Path(u.find_spec("tensorflow").origin).parent / "include")')
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$scratch/shim/tensorflow/compiler/xla/client"
    echo '#include "xla/hlo/builder/xla_builder.h"' \
        >"$scratch/shim/tensorflow/compiler/xla/client/xla_builder.h"
    CPATH="$scratch/shim:$include/external/highwayhash:$include/external/farmhash_archive/src"
    export CPATH
    if [ -n "${HOROVOD_WITH_MPI:-}" ]; then
        export HOROVOD_WITH_MPI=1
    else
        export HOROVOD_WITHOUT_MPI=1
    fi
    echo "Building Horovod $version ($key); this takes some minutes."
    if ! PATH="$venv/bin:$PATH" HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 \
        HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 MAKEFLAGS="-j$(nproc)" \
        "$venv/bin/pip" wheel --verbose --no-build-isolation --no-cache-dir --no-deps \
        --no-binary horovod --wheel-dir "$wheels" "horovod==$version" >"$scratch/log" 2>&1; then
        tail -n 40 "$scratch/log" >&2
        echo "Horovod could not be built; above are the last lines." >&2
        exit 1
    fi
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall \
    "$wheels"/horovod-$version-*.whl
"$python" -c 'import horovod.tensorflow as hvd; print("Horovod is installed; Gloo:", hvd.gloo_built())'
