# `make` without a target lists all targets.
.DEFAULT_GOAL := help
BIN := .venv/bin
# PYTHON on the command line selects the interpreter: make setup PYTHON=/usr/bin/python3.13
export PYTHON

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  make bench-NAME       Run one benchmark: burst, cost, decide, gang, growth, idle, light, memory, onboard, page, paths, queue, reclaim, restart, streams, trace, translate"
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

LANES := lint unit property rendering e2e kubernetes kueue volcano external monitoring operators chart ui deep \
	virtual-kubelet clusters conformance datastore tools docs
.PHONY: test test-matrix $(LANES:%=test-%)
test: setup ## Run what every change must pass: lint, types, unit, property and end-to-end tests
	@$(BIN)/python -m tests.lanes test
test-unit: ## Run the unit tests: no programs needed
test-property: ## Run the property tests, and check the arbiter's invariants in 1,000 random stories (VKGATEWAY_STORIES=N)
test-rendering: ## Render the chart with many values and check the objects; the first run builds Helm, three minutes
test-e2e: ## Run the end-to-end tests of `make test`
test-kubernetes: ## Run the end-to-end tests with gateway, etcd and control planes as pods, installed with the chart
test-kueue: ## Test pools that the real Kueue schedules
test-volcano: ## Test pools that the real Volcano schedules
test-external: ## Test pools of a second kube-scheduler and of Koordinator
test-monitoring: ## Test alerts, dashboards and scraping with the real Prometheus
test-docs: ## Run the commands of the how-tos, word for word
test-operators: ## Run the commands of every page of docs/operators; the first build takes minutes
test-chart: ## Test the installed chart: upgrades, leader and standby, uninstallation
test-ui: ## Test the page in a real browser; pictures in build/ui; installs chromium as root on Debian
test-deep: ## Check 10,000 random stories (VKGATEWAY_STORIES=1000000 takes hours) and more examples
test-clusters: ## Test several compute clusters of one gateway, and several gateways of one compute cluster
test-conformance: ## Run a subset of Kubernetes' conformance tests in a tenant
test-datastore: ## Test tenants that fill the datastore
test-tools: ## Test the kubectl plugin, usage and budgets, what-if, and installations from wheels
test-virtual-kubelet: ## Run virtual-kubelet's end-to-end suite against a real and a hollow virtual node
$(LANES:%=test-%): setup
	@$(BIN)/python -m tests.lanes $(@:test-%=%)

test-matrix: setup ## Run the end-to-end tests with older tenants and older compute clusters; takes an hour
	@$(BIN)/python -m scripts.matrix $(PAIRS)

.PHONY: test-all
test-all: setup ## Run every lane of tests, and print a table; takes hours
	@$(BIN)/python -m tests.lanes all

.PHONY: test-times
test-times: setup ## Print the slowest tests and set-ups of the last runs, and the critical path; LANE=test
	@$(BIN)/python -m tests.lanes.times $(LANE)

.PHONY: lint
lint: test-lint ## Run ruff, mypy --strict, import-linter, and check the documentation's links

.PHONY: docs
docs: setup ## Build the documentation site in build/docs, and check links and anchors
	@$(BIN)/python -m tests.lanes site
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

.PHONY: bench-check
bench-check: setup programs ## Compare a short burst and its cost with the published ratios
	@$(BIN)/python -m bench check

.PHONY: bench-paths
bench-paths: setup ## Count files, functions and moves of typical changes, as in docs/contributing/architecture.md
	@$(BIN)/python -m bench paths

.PHONY: bench-%
bench-%: setup programs
	@$(BIN)/python -m bench $*

.PHONY: scale
scale: setup programs ## Run a trace of Jobs on 1,000 hollow nodes, and its simulation; takes half an hour; SCALE="--nodes 50 --tenants 3 --minutes 2"
	@$(BIN)/python -m bench.scale $(SCALE)

.PHONY: wheels
wheels: setup ## Build the wheels of both packages, vkgateway and vkgateway-platform, in dist
	@$(BIN)/python scripts/wheels.py dist

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
