#!/bin/sh
# Runs checks and tests: any of `lint`, `unit`, `property`, `e2e`, `operators`, in the order given; the first that fails
# ends it.
set -eu
cd "$(dirname "$0")/.."

BIN=.venv/bin

step() {
    name=$1
    shift
    echo "── $name: $*" >&2
    "$@"
}

lint() {
    step lint "$BIN/ruff" check -q .
    step lint "$BIN/ruff" format --check -q .
    step lint "$BIN/mypy"
    step lint "$BIN/lint-imports"
}

unit() { step unit "$BIN/python" -m pytest -q -n logical --dist worksteal tests/unit tests/property; }

property() { step property "$BIN/python" -m tests.property.deep "${VKGATEWAY_STORIES:-1000}"; }

e2e() {
    step programs "$BIN/python" scripts/programs.py
    # Two platforms side by side: tests of a kind share one, and mostly wait. Not the files with many tests first: the
    # longest tests stand in the files with the fewest.
    step e2e "$BIN/python" -m pytest -v --tb=short --durations=15 -n 2 --dist loadfile --no-loadscope-reorder tests/e2e
}

operators() {
    step programs "$BIN/python" scripts/programs.py
    step operators "$BIN/python" -m pytest -v --tb=short --durations=0 tests/e2e/test_operators.py
}

scripts/setup.sh
for part in "$@"; do
    case $part in
        lint | unit | property | e2e | operators) "$part" ;;
        *) echo "test.sh: no part is called $part; there are lint, unit, property, e2e and operators" >&2; exit 2 ;;
    esac
done
