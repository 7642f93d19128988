# `make` without a target lists all targets.
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# PYTHON on the command line selects the interpreter: make setup PYTHON=/usr/bin/python3.13
export PYTHON
# Whether `make test` runs the end-to-end tests in parallel to the other tests, which have low priority.
BESIDE ?= 1

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  make bench-NAME       Run one benchmark: burst, cost, decide, gang, growth, idle, light, memory, onboard, page, queue, reclaim, restart, streams, trace, translate"
	@echo "  make operator-NAME    Build the images and programs for a page of docs/operators: mpi, mpi-old, kopf, training, elastic, horovod, spark, volcano, metrics-server, kueue"

.PHONY: setup
setup: ## Create the Python environment and, as root on Debian, install the real node's packages; idempotent
	@scripts/setup.sh

.PHONY: programs
programs: setup ## Fetch or build the Kubernetes programs for the platform and the tests; idempotent
	@$(BIN)/python scripts/programs.py

.PHONY: demo
demo: setup ## Start a platform, create two tenants, run kubectl in each
	@$(BIN)/python scripts/demo.py

.PHONY: test
test: ## Run all checks and tests, including end-to-end tests; BESIDE=0: end-to-end tests last
	@scripts/test.sh $(if $(filter-out 0,$(BESIDE)),all,lint unit property chart e2e)

.PHONY: test-unit
test-unit: ## Run the unit tests: no programs needed, about a minute on two cores
	@scripts/test.sh unit

.PHONY: test-property
test-property: ## Run the property tests, and check the arbiter's invariants in 1,000 random stories (VKGATEWAY_STORIES=N)
	@scripts/test.sh property

.PHONY: test-chart
test-chart: ## Render the chart with many values and check the objects; the first run builds Helm, three minutes
	@scripts/test.sh chart

.PHONY: test-ui
test-ui: ## Test the page in a real browser; pictures in build/ui; installs chromium as root on Debian
	@scripts/test.sh ui

.PHONY: test-deep
test-deep: setup ## Check a million random stories with progress; takes hours
	@$(BIN)/python -m tests.property.deep 1000000

.PHONY: test-e2e
test-e2e: ## Run only the end-to-end tests
	@scripts/test.sh e2e

.PHONY: test-operators
test-operators: ## Run the commands of every page of docs/operators; the first build takes minutes
	@VKGATEWAY_ALL_OPERATORS=1 scripts/test.sh operators

.PHONY: test-kubernetes
test-kubernetes: ## Run the end-to-end tests with the gateway, etcd and control planes as pods, installed with the chart
	@scripts/test.sh kubernetes

.PHONY: test-virtual-kubelet
test-virtual-kubelet: ## Run virtual-kubelet's end-to-end suite against a real and a hollow virtual node
	@VKGATEWAY_VIRTUAL_KUBELET=1 scripts/test.sh virtual-kubelet

.PHONY: test-matrix
test-matrix: setup ## Run the end-to-end tests with older tenants and older compute clusters; takes an hour
	@$(BIN)/python scripts/matrix.py $(PAIRS)

.PHONY: lint
lint: ## Run ruff, mypy --strict, import-linter, and check the documentation's links
	@scripts/test.sh lint

.PHONY: docs
docs: setup ## Build the documentation site in build/docs, and check links and anchors
	@scripts/test.sh docs
	@echo "open build/docs/index.html"

.PHONY: reference
reference: setup ## Write the generated parts of docs/reference from the code
	@$(BIN)/python scripts/reference.py

.PHONY: chart
chart: setup ## Write the generated files of deploy/chart from the code and values.yaml
	@$(BIN)/python scripts/chart_files.py

.PHONY: conformance
conformance: setup programs ## Run the Kubernetes conformance tests in a tenant and in the compute cluster; takes hours, resumable; FOCUS=..., AGAIN=failed, OFTEN=3
	@$(BIN)/python scripts/conformance.py

.PHONY: bench
bench: setup programs ## Run the benchmarks and write docs/reference/benchmarks.md
	@$(BIN)/python -m bench all

.PHONY: bench-%
bench-%: setup programs
	@$(BIN)/python -m bench $*

.PHONY: scale
scale: setup programs ## Run a trace of Jobs on 1,000 hollow nodes, and its simulation; takes half an hour; SCALE="--nodes 50 --tenants 3 --minutes 2"
	@$(BIN)/python -m bench.scale $(SCALE)

.PHONY: image
image: setup ## Build the gateway's container image as an OCI archive, as root on Debian; ARCH=amd64,arm64, NAME=..., BASE=..., REFRESH=1
	@$(BIN)/python -m scripts.image $(if $(ARCH),--arch "$(ARCH)") $(if $(NAME),--name "$(NAME)") $(if $(BASE),--base "$(BASE)") $(if $(REFRESH),--refresh)

.PHONY: operator-%
operator-%: setup
	@$(BIN)/python -m operators $*

.PHONY: clean
clean: ## Remove generated files of this checkout; keep the platform's data and the program cache
	@rm -rf .demo .operators .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "To delete the platform's data: vkgateway down --purge. To delete the program cache: vkgateway binaries prune --all"
