#!/usr/bin/env bash
# Runs a Python script with the peers' environment where script/setup made one, and with the plain python3 otherwise.
set -euo pipefail
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..
# shellcheck source=script/lib.sh
source "$root/script/lib.sh"
python=$peers_dir/bin/python3
[[ -x $python ]] || python=python3
exec "$python" -B "$@"
