#!/bin/sh
# Runs a command of the virtual environment, as root in a network of its own: browsers end their connections whenever an
# interface appears on the machine, as end-to-end tests create them.
set -eu
if [ "$(id -u)" -eq 0 ] && unshare --net true 2>/dev/null; then
    # shellcheck disable=SC2016
    exec unshare --net -- sh -c 'ip link set lo up && exec "$@"' sh "$@"
fi
exec "$@"
