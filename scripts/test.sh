#!/bin/sh
# Runs checks and tests: any of `lint`, `docs`, `unit`, `property`, `e2e`, `operators`, `virtual-kubelet`, in order;
# the first that fails ends it. `all` is lint, unit, property and e2e, with the end-to-end tests beside the others.
set -eu
cd "$(dirname "$0")/.."

BIN=.venv/bin
LOW=
# Where a shell forbids it, every worker and every command that tests run would compile all of its modules again.
unset PYTHONDONTWRITEBYTECODE

# Three platforms side by side: tests of a kind share one, and mostly wait. Not the files with many tests first: the
# longest tests stand in the files with the fewest.
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

# Warnings are errors: a link, an anchor or a page that no index links to.
docs() { step docs "$BIN/python" -m sphinx -b html -E -q -n -W --keep-going docs build/docs; }

# Three times as many workers as cores: most of the time tests wait.
unit() { step unit "$BIN/python" -m pytest -q -n "$((3 * $(nproc)))" --dist worksteal tests/unit; }

property() {
    step property "$BIN/python" -m pytest -q -n "$(nproc)" --dist worksteal tests/property
    step property "$BIN/python" -m tests.property.deep "${VKGATEWAY_STORIES:-1000}"
}

programs() { step programs "$BIN/python" scripts/programs.py; }

e2e() {
    programs
    # shellcheck disable=SC2086
    step e2e $E2E
}

# End-to-end tests leave gaps: the others compute in these, at low priority, and are told first. Whatever fails first of
# what is told ends it all, and an interrupt does; the platforms are taken down.
all() {
    programs
    log=$(mktemp)
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'end_beside' EXIT
    # What a script starts in the background ignores interrupts, and would not hear that it is to end.
    # shellcheck disable=SC2086
    setsid env --default-signal=INT VKGATEWAY_TEST_PREFIX="vkg-$$-" $E2E >"$log" 2>&1 &
    beside=$!
    echo "── e2e: begun, to be told after the others" >&2
    LOW="nice -n 10"
    lint
    unit
    property
    LOW=
    echo "── e2e: $E2E" >&2
    tail -n +1 -f --pid="$beside" "$log"
    wait "$beside"
}

end_beside() {
    code=$?
    trap '' INT TERM
    if [ -n "${beside:-}" ] && kill -s INT -- "-$beside" 2>/dev/null; then
        echo "── e2e: ended early, its platforms are taken down; so far:" >&2
        grep -E "(FAILED|ERROR) " "$log" >&2 || echo "nothing had failed" >&2
        wait "$beside" || true
        # Workers that take longer than ten seconds for it are killed.
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
        tests/e2e/test_gang_readers.py
}

virtual_kubelet() {
    programs
    step virtual-kubelet "$BIN/python" -m pytest -v -rP --tb=short tests/e2e/test_virtual_kubelet.py
}

scripts/setup.sh
for part in "$@"; do
    case $part in
        lint | docs | unit | property | e2e | operators | all) "$part" ;;
        virtual-kubelet) virtual_kubelet ;;
        *) echo "test.sh: no part is called $part; there are lint, docs, unit, property, e2e, operators, virtual-kubelet, all" >&2; exit 2 ;;
    esac
done
