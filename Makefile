# `make` alone lists what there is.
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Given on the command line it chooses the interpreter: make setup PYTHON=/usr/bin/python3.13
export PYTHON

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: ## Python environment and, as root on Debian, the packages of the real node; quick when done
	@scripts/setup.sh

.PHONY: demo
demo: setup ## Platform up, two tenants on board, kubectl at work in each; says how to go on
	@$(BIN)/python scripts/demo.py

.PHONY: test
test: lint test-unit test-e2e ## All checks and tests, against real etcd, API servers and kubelet too

.PHONY: test-unit
test-unit: setup ## Unit and property tests: no programs needed, under a minute
	@$(PYTEST) -q tests/unit tests/property

.PHONY: test-e2e
test-e2e: setup ## End-to-end tests alone
	@$(PYTEST) -q tests/e2e

.PHONY: lint
lint: setup ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: bench
bench: setup ## The benchmarks; figures go to docs/benchmarks.md
	@$(BIN)/python -m bench
