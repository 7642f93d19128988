#!/bin/sh
# Prepares a checkout: a virtual environment with the locked dependencies and, as root on Debian, system packages.
# Does nothing when it has been done for this very lock file, by root or with nothing left for root. Choose the interpreter with PYTHON=/path/to/python;
# `setup.sh python` only says which one it would take.
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
PACKAGES="runc containernetworking-plugins iptables nftables iproute2 conntrack socat busybox-static iputils-ping mmdebstrap"
STAMP="$VENV/.setup-$(cat requirements.lock pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)"

say() { echo "setup: $*" >&2; }
fail() { echo "setup: $1" >&2; shift; for line in "$@"; do echo "       $line" >&2; done; exit 1; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }

# The file that an interpreter, or that of a virtual environment, is in the end.
base() { "$1" -c 'import os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null; }

# Whether the virtual environment was made in this very place: a checkout that was moved or copied leads elsewhere.
is_here() { (set +eu; . "$VENV/bin/activate" && [ "$VIRTUAL_ENV" = "$(pwd -P)/$VENV" ]) 2>/dev/null; }

# Whether it is whole, made here, of a version that fits and on the interpreter asked for, if one was.
stands() { fits "$VENV/bin/python" && is_here && { [ -z "${PYTHON:-}" ] || [ "$(base "$VENV/bin/python")" = "$(base "$PYTHON")" ]; }; }

# Every interpreter on PATH that fits and can make a virtual environment, the usual one first, each once.
candidates() {
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        printf '%s\n' "$PATH" | tr ':' '\n' | while read -r folder; do
            fits "$folder/$name" && "$folder/$name" -c 'import ensurepip, venv' 2>/dev/null && base "$folder/$name"
        done || true
    done | awk '!seen[$0]++'
}

# Of the interpreters given the first, unless another takes less than 85 % of its CPU. Each has five turns, one after the
# other, and the best counts: machines are slower in one second than in the next.
fastest() {
    for turn in 1 2 3 4 5; do
        for python in "$@"; do
            echo "$("$python" scripts/pace.py) $python"
        done
    done | awk '
        { pace = $1; sub(/^[0-9]+ /, ""); if (!($0 in least) || pace < least[$0]) least[$0] = pace; if (NR == 1) usual = $0 }
        END { chosen = usual
            for (one in least) if (least[one] < 0.85 * least[usual] && least[one] < least[chosen]) chosen = one
            print chosen }'
}

# The usual interpreter, unless another on this machine is a good deal faster: one compiled without its optimizations,
# as by version managers, takes up to twice the CPU for everything.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" || fail "PYTHON=$PYTHON is not a Python from 3.11 to 3.14."
        echo "$PYTHON"
        return
    fi
    IFS='
'
    # shellcheck disable=SC2046
    set -- $(candidates)
    usual=${1:-} chosen=${1:-}
    [ $# -lt 2 ] || chosen=$(fastest "$@")
    if [ -n "$chosen" ]; then
        [ "$chosen" = "$usual" ] || say "$chosen is a good deal faster than $usual, so it is taken; PYTHON=$usual keeps to that"
        echo "$chosen"
        return
    fi
    found=$(python3 --version 2>/dev/null || echo "no python3 at all")
    fail "vkgateway needs Python 3.11, 3.12, 3.13 or 3.14, with venv; here is $found." \
        "Debian 12 and later, Ubuntu 24.04 and later: apt install python3 python3-venv" \
        "Anywhere: install uv (https://docs.astral.sh/uv), then" \
        "  uv python install 3.13 && make setup PYTHON=\$(uv python find 3.13)"
}

install_packages() {
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1 || {
        say "not Debian: for a real node install by hand what these packages hold: $PACKAGES"
        return 0
    }
    missing=""
    for package in $PACKAGES; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "a real node needs root and these packages; without them the platform has hollow nodes only:$missing"
        left=$missing
        return 0
    fi
    say "installing Debian packages for the real node:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    if ! { apt-get install -y -qq --no-install-recommends $missing || {
        apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing
    }; } >/dev/null 2>"$VENV/apt.log"; then
        say "apt could not install them ($(tail -n 1 "$VENV/apt.log")); the platform will have hollow nodes only"
    fi
}

# The package conflicts with busybox-static, so it is unpacked; vkgateway/local/realnode/busybox.py says what for.
unpack_busybox() {
    program=/usr/local/lib/vkgateway/busybox
    [ "$(id -u)" -eq 0 ] && [ ! -e "$program" ] && command -v apt-get >/dev/null 2>&1 || return 0
    say "unpacking the Debian package busybox for images"
    folder="$VENV/busybox"
    {
        mkdir -p "$folder" "${program%/*}" &&
            (cd "$folder" && { apt-get download -qq busybox || { apt-get update -qq && apt-get download -qq busybox; }; }) &&
            dpkg-deb -x "$folder"/busybox_*.deb "$folder/root" &&
            find "$folder/root" -name busybox -type f -perm /1 -exec cp {} "$program" \;
    } >/dev/null 2>"$VENV/apt.log" || true
    [ -e "$program" ] || say "could not unpack it ($(tail -n 1 "$VENV/apt.log")); wget -T crashes in the image busybox:1"
    rm -rf "$folder"
}

make_venv() {
    if ! stands; then
        python=$(find_python)
        rm -rf "$VENV"
        say "making $VENV with $("$python" --version)"
        "$python" -m venv "$VENV" >/dev/null 2>&1 || {
            rm -rf "$VENV"
            fail "$python cannot make a virtual environment." "Debian and Ubuntu: apt install python3-venv"
        }
    fi
    say "installing the locked dependencies"
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
    # setuptools comes from the lock file too, so the build needs nothing that is not in it.
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
}

if [ "${1:-}" = python ]; then
    find_python
    exit
fi
if [ -e "$STAMP" ] && stands; then
    # What is in the stamp was left for root.
    [ -s "$STAMP" ] && [ "$(id -u)" -eq 0 ] || exit 0
else
    make_venv
fi
left=""
install_packages
unpack_busybox
rm -f "$VENV"/.setup-*
printf '%s' "$left" >"$STAMP"
say "ready"
