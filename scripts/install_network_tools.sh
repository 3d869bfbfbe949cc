#!/bin/sh
# iproute2, with which the tests in tests/cluster make network namespaces; does nothing where
# it is there, and says so where it cannot be installed: those tests are skipped then.
set -eu

command -v ip >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "iproute2 is missing, and this is not root on Debian: tests of clusters will be skipped." >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends iproute2 >&2
