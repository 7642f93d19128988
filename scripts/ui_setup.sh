#!/bin/sh
# Prepares the tests of the page: the locked packages of the extra `ui` and, as root on Debian, chromium. Idempotent.
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
LOCK=requirements-ui.lock
CHROMIUM=/usr/bin/chromium
PACKAGES="chromium fonts-dejavu-core"
STAMP="$VENV/.ui-$(sha256sum <"$LOCK" | cut -c1-16)"

say() { echo "ui_setup: $*" >&2; }
fail() { echo "ui_setup: $1" >&2; shift; for line in "$@"; do echo "          $line" >&2; done; exit 1; }

install_chromium() {
    [ ! -x "$CHROMIUM" ] || return 0
    command -v apt-get >/dev/null 2>&1 || fail "the tests of the page need $CHROMIUM." \
        "Debian and Ubuntu: apt install $PACKAGES. Other systems: link your Chromium or Chrome to $CHROMIUM."
    [ "$(id -u)" -eq 0 ] || fail "the tests of the page need $CHROMIUM." "Install it as root: apt install $PACKAGES"
    say "installing Debian packages: $PACKAGES"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    { apt-get install -y -qq --no-install-recommends $PACKAGES || {
        apt-get update -qq && apt-get install -y -qq --no-install-recommends $PACKAGES
    }; } >/dev/null 2>"$VENV/apt.log" || fail "apt cannot install $PACKAGES." "$(tail -n 1 "$VENV/apt.log")"
}

install_chromium
if [ ! -e "$STAMP" ] || ! "$VENV/bin/python" -c 'import axe_playwright_python, playwright' 2>/dev/null; then
    say "installing the locked packages of the extra ui"
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r "$LOCK"
    rm -f "$VENV"/.ui-*
    : >"$STAMP"
fi
