#!/bin/sh
# Runs checks and tests in the given order: `lint`, `docs`, `unit`, `property`, `chart`, `ui`, `e2e`, `kubernetes`,
# `operators`, `virtual-kubelet`. The first failure ends the script. `all` is lint, unit, property, chart and e2e, with e2e in parallel
# to the others.
set -eu
cd "$(dirname "$0")/.."

BIN=.venv/bin
LOW=
# If set, every worker and every command of the tests would compile all modules again.
unset PYTHONDONTWRITEBYTECODE

# Three platforms in parallel: tests of a file share one and mostly wait. Files with many tests do not run first, because
# the longest tests are in the files with the fewest.
E2E="$BIN/python -m pytest -v --tb=short --durations=15 -n 3 --dist loadfile --no-loadscope-reorder tests/e2e"

step() {
    name=$1
    shift
    echo "── $name: $*" >&2
    $LOW "$@"
}

lint() {
    step lint "$BIN/ruff" check -q .
    step lint "$BIN/ruff" format --check -q .
    step lint "$BIN/mypy"
    step lint "$BIN/lint-imports"
    docs
}

# Warnings are errors: broken links and anchors, and pages without an index entry.
docs() { step docs "$BIN/python" -m sphinx -b html -E -q -n -W --keep-going docs build/docs; }

# Three workers per core, because tests mostly wait.
unit() { step unit "$BIN/python" -m pytest -q -n "$((3 * $(nproc)))" --dist worksteal tests/unit; }

property() {
    step property "$BIN/python" -m pytest -q -n "$(nproc)" --dist worksteal tests/property
    step property "$BIN/python" -m tests.property.deep "${VKGATEWAY_STORIES:-1000}"
}

# The first run builds Helm.
chart() { step chart "$BIN/python" -m pytest -q tests/chart; }

# Two browsers: each worker starts one. As root, with a network of their own: browsers end their connections whenever an
# interface appears on the machine, as end-to-end tests create them.
ui() {
    scripts/ui_setup.sh
    programs
    step ui "$BIN/python" -m pytest -q tests/ui/platform
    set -- "$BIN/python" -m pytest -q -n 2 --dist worksteal --ignore tests/ui/platform tests/ui
    if [ "$(id -u)" -eq 0 ] && unshare --net true 2>/dev/null; then
        # shellcheck disable=SC2016
        set -- unshare --net -- sh -c 'ip link set lo up && exec "$@"' sh "$@"
    fi
    step ui "$@"
}

programs() { step programs "$BIN/python" scripts/programs.py; }

e2e() {
    programs
    # shellcheck disable=SC2086
    step e2e $E2E
}

# The other tests run at low priority while the end-to-end tests wait, and are reported first. The first reported failure
# or an interrupt ends everything and stops the platforms.
all() {
    programs
    log=$(mktemp)
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'end_beside' EXIT
    # Background processes of a script ignore SIGINT by default.
    # shellcheck disable=SC2086
    setsid env --default-signal=INT VKGATEWAY_TEST_PREFIX="vkg-$$-" $E2E >"$log" 2>&1 &
    beside=$!
    echo "── e2e: started in the background, reported after the others" >&2
    LOW="nice -n 10"
    lint
    unit
    property
    chart
    LOW=
    echo "── e2e: $E2E" >&2
    tail -n +1 -f --pid="$beside" "$log"
    wait "$beside"
}

end_beside() {
    code=$?
    trap '' INT TERM
    if [ -n "${beside:-}" ] && kill -s INT -- "-$beside" 2>/dev/null; then
        echo "── e2e: stopped early, stopping its platforms; failures so far:" >&2
        grep -E "(FAILED|ERROR) " "$log" >&2 || echo "none" >&2
        wait "$beside" || true
        # Workers that need longer than ten seconds are killed.
        for left in "${TMPDIR:-/tmp}/vkg-$$-"*/; do
            [ -d "$left" ] || continue
            "$BIN/python" -m vkgateway down --purge -q --data-dir "$left" && rm -rf "$left" || true
        done
    fi
    rm -f "$log"
    exit "$code"
}

operators() {
    programs
    step operators "$BIN/python" -m pytest -v --tb=short --durations=0 tests/e2e/test_operators.py \
        tests/e2e/test_gang_integrations.py
}

kubernetes() {
    programs
    # shellcheck disable=SC2086
    VKGATEWAY_TEST_DRIVER=kubernetes step kubernetes $E2E
}

virtual_kubelet() {
    programs
    step virtual-kubelet "$BIN/python" -m pytest -v -rP --tb=short tests/e2e/test_virtual_kubelet.py
}

scripts/setup.sh
for part in "$@"; do
    case $part in
        lint | docs | unit | property | chart | ui | e2e | kubernetes | operators | all) "$part" ;;
        virtual-kubelet) virtual_kubelet ;;
        *) echo "test.sh: unknown part $part; available parts: lint, docs, unit, property, chart, ui, e2e, kubernetes, operators, virtual-kubelet, all" >&2; exit 2 ;;
    esac
done
