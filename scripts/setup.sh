#!/bin/sh
# Prepares a checkout: a virtual environment with the locked dependencies and, as root on Debian, system packages.
# Does nothing if the setup for this lock file is complete. PYTHON=/path/to/python selects the interpreter;
# `setup.sh python` only prints the interpreter that it would use.
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
PACKAGES="runc containernetworking-plugins iptables nftables iproute2 conntrack socat busybox-static iputils-ping mmdebstrap"
STAMP="$VENV/.setup-$(cat requirements.lock pyproject.toml vkgateway_platform/pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)"

say() { echo "setup: $*" >&2; }
fail() { echo "setup: $1" >&2; shift; for line in "$@"; do echo "       $line" >&2; done; exit 1; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }

# Prints the resolved path of an interpreter, or of a virtual environment's interpreter.
base() { "$1" -c 'import os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null; }

# Succeeds if the virtual environment was created in this directory, not in a moved or copied checkout.
is_here() { (set +eu; . "$VENV/bin/activate" && [ "$VIRTUAL_ENV" = "$(pwd -P)/$VENV" ]) 2>/dev/null; }

# Succeeds if the virtual environment is intact, with a supported version and the selected interpreter, if any.
stands() { fits "$VENV/bin/python" && is_here && { [ -z "${PYTHON:-}" ] || [ "$(base "$VENV/bin/python")" = "$(base "$PYTHON")" ]; }; }

# Prints every supported interpreter on PATH that can create a virtual environment, the default first, each once.
candidates() {
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        printf '%s\n' "$PATH" | tr ':' '\n' | while read -r folder; do
            fits "$folder/$name" && "$folder/$name" -c 'import ensurepip, venv' 2>/dev/null && base "$folder/$name"
        done || true
    done | awk '!seen[$0]++'
}

# Prints the first of the given interpreters, unless another needs less than 85 % of its CPU time. Each runs five times,
# and the minimum counts, because the speed of a machine varies.
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

# Prints the default interpreter, unless another is much faster: interpreters compiled without optimizations, as by
# version managers, need up to twice the CPU time.
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
        [ "$chosen" = "$usual" ] || say "using $chosen, which is much faster than $usual; to override, set PYTHON=$usual"
        echo "$chosen"
        return
    fi
    found=$(python3 --version 2>/dev/null || echo "no python3")
    fail "vkgateway needs Python 3.11, 3.12, 3.13 or 3.14, with venv; found $found." \
        "Debian 12 and later, Ubuntu 24.04 and later: apt install python3 python3-venv" \
        "Other systems: install uv (https://docs.astral.sh/uv), then" \
        "  uv python install 3.13 && make setup PYTHON=\$(uv python find 3.13)"
}

install_packages() {
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1 || {
        say "not Debian: a real node needs the programs of these Debian packages: $PACKAGES"
        return 0
    }
    missing=""
    for package in $PACKAGES; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "a real node needs root and these packages; without them, the platform has only hollow nodes:$missing"
        left=$missing
        return 0
    fi
    say "installing Debian packages for the real node:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    if ! { apt-get install -y -qq --no-install-recommends $missing || {
        apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing
    }; } >/dev/null 2>"$VENV/apt.log"; then
        say "apt cannot install them ($(tail -n 1 "$VENV/apt.log")); the platform will have only hollow nodes"
    fi
}

# The package conflicts with busybox-static, so it is only unpacked; see vkgateway_platform/embedded/realnode/busybox.py.
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
    [ -e "$program" ] || say "cannot unpack it ($(tail -n 1 "$VENV/apt.log")); wget -T crashes in the image busybox:1"
    rm -rf "$folder"
}

make_venv() {
    if ! stands; then
        python=$(find_python)
        rm -rf "$VENV"
        say "creating $VENV with $("$python" --version)"
        "$python" -m venv "$VENV" >/dev/null 2>&1 || {
            rm -rf "$VENV"
            fail "$python cannot create a virtual environment." "Debian and Ubuntu: apt install python3-venv"
        }
    fi
    say "installing the locked dependencies"
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-compile --require-hashes -r requirements.lock
    # setuptools comes from the lock file too, so the build needs nothing that is not in it.
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . -e ./vkgateway_platform
}

if [ "${1:-}" = python ]; then
    find_python
    exit
fi
if [ -e "$STAMP" ] && stands; then
    # The stamp lists the packages that root still has to install.
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
