# `make` without a target lists all targets.
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# PYTHON on the command line selects the interpreter: make setup PYTHON=/usr/bin/python3.13
export PYTHON
# Whether `make test` runs the end-to-end tests at the same time as the others, which have low priority.
BESIDE ?= 1

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  make bench-NAME       One benchmark alone: burst, cost, decide, gang, light, memory, onboard, reclaim, restart, streams, trace, translate"
	@echo "  make operator-NAME    Build what a page of docs/operators needs: mpi, mpi-old, kopf, training, elastic, horovod, spark, volcano, metrics-server"

.PHONY: setup
setup: ## Python environment and, as root on Debian, the packages of the real node; quick when done
	@scripts/setup.sh

.PHONY: programs
programs: setup ## Fetch or build Kubernetes' programs, for platform and tests; quick when done
	@$(BIN)/python scripts/programs.py

.PHONY: demo
demo: setup ## Start a platform, create two tenants, run kubectl in each
	@$(BIN)/python scripts/demo.py

.PHONY: test
test: ## All checks and tests, against real etcd, API servers and kubelet too; BESIDE=0: end-to-end tests last
	@scripts/test.sh $(if $(filter-out 0,$(BESIDE)),all,lint unit property e2e)

.PHONY: test-unit
test-unit: ## Unit tests: no programs needed, under a minute on two cores
	@scripts/test.sh unit

.PHONY: test-property
test-property: ## Property tests, and the arbiter's invariants over 1,000 random stories (VKGATEWAY_STORIES: 20,000 in CI)
	@scripts/test.sh property

.PHONY: test-deep
test-deep: setup ## A million random stories: hours; shows the progress
	@$(BIN)/python -m tests.property.deep 1000000

.PHONY: test-e2e
test-e2e: ## End-to-end tests alone
	@scripts/test.sh e2e

.PHONY: test-operators
test-operators: ## Run every page of docs/operators word for word; the first time it builds for minutes
	@VKGATEWAY_ALL_OPERATORS=1 scripts/test.sh operators

.PHONY: test-virtual-kubelet
test-virtual-kubelet: ## virtual-kubelet's own end-to-end suite against a real and a hollow virtual node; built the first time
	@VKGATEWAY_VIRTUAL_KUBELET=1 scripts/test.sh virtual-kubelet

.PHONY: test-matrix
test-matrix: setup ## End-to-end tests with older tenants, and with older compute clusters: an hour
	@$(BIN)/python scripts/matrix.py $(PAIRS)

.PHONY: lint
lint: ## ruff, mypy --strict, import-linter, links of the documentation
	@scripts/test.sh lint

.PHONY: docs
docs: setup ## Build the documentation site in build/docs, and check links and anchors
	@scripts/test.sh docs
	@echo "open build/docs/index.html"

.PHONY: reference
reference: setup ## Write the generated parts of docs/reference from the code
	@$(BIN)/python scripts/reference.py

.PHONY: conformance
conformance: setup programs ## Kubernetes' conformance cases, in a tenant and in the compute cluster: hours, resumable; FOCUS=..., AGAIN=failed, OFTEN=3
	@$(BIN)/python scripts/conformance.py

.PHONY: bench
bench: setup programs ## Run the benchmarks; writes docs/reference/benchmarks.md
	@$(BIN)/python -m bench all

.PHONY: bench-%
bench-%: setup programs
	@$(BIN)/python -m bench $*

.PHONY: scale
scale: setup programs ## Run a trace of Jobs on 1,000 hollow nodes, and its simulation: half an hour; SCALE="--nodes 50 --tenants 3 --minutes 2"
	@$(BIN)/python -m bench.scale $(SCALE)

.PHONY: operator-%
operator-%: setup
	@$(BIN)/python -m operators $*

.PHONY: clean
clean: ## Remove files of this checkout; the platform's data and the program cache stay
	@rm -rf .demo .operators .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "clean; the platform's data: vkgateway down --purge, the program cache: vkgateway binaries prune --all"
