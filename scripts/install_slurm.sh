#!/bin/sh
# Slurm and munge, which the tests in tests/cluster start on loopback; does nothing where they are
# there, and says so where they cannot be installed: those tests are skipped then.
set -eu

command -v slurmctld >/dev/null 2>&1 && command -v munged >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "Slurm is missing, and this is not root on Debian: tests with it will be skipped." >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends slurm-wlm munge >&2
