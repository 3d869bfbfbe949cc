#!/bin/sh
# Chromium and its driver, which the tests in tests/browser need; does nothing where both are.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }

if have chromedriver && { have chromium || have google-chrome; }; then
    exit 0
fi
if ! have apt-get; then
    echo "Chromium or chromedriver is missing and there is no apt-get: install both by hand." >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Chromium or chromedriver is missing: run 'sudo $0' once." >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >&2
