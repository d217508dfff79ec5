# Two commands for a new user: `make demo` and `make test`. Both make .venv first if it is missing.

VENV := .venv
BIN := $(VENV)/bin
# Touched when the environment is complete; older than either file, it is brought up to date.
INSTALLED := $(VENV)/.installed
EXTRAS := train,pybullet,ros,cluster,notebooks,dev
INSIDE := not ros and not ray and not gpu
QUICK := not slow and $(INSIDE)
# Two processes, each with whole test files or classes, which share what is costly to make.
PARALLEL := -n 2 --dist loadscope
# Tests that start a cluster or a ROS 2 graph and wait for it most of the time run beside each other,
# those of clusters all in one process; other graphs want nobody beside them.
BESIDE := ray or patient
TWICE := --reruns 1 -r fERs

.DEFAULT_GOAL := help
.PHONY: help demo check test static clean distclean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## Train A1, export the policy, walk it in PyBullet over ROS 2 (under 15 minutes)
	$(BIN)/ferry demo

check: static ## The fast part of the tests, for every commit (1 to 2 minutes)
	$(BIN)/pytest -q -m "$(QUICK)" $(PARALLEL)

# Real processes kill and wait for each other in many tests, and a shared machine may hold one up:
# such a test fails if it fails twice, and one that needed the second time is named at the end. All
# three parts always run.
test: static ## Everything: lint, types, import contracts, the whole test suite
	@status=0; \
	$(BIN)/pytest -q -m "$(INSIDE)" $(PARALLEL) $(TWICE) || status=$$?; \
	$(BIN)/pytest -q -m "$(BESIDE)" -n 2 --dist loadgroup $(TWICE) || status=$$?; \
	$(BIN)/pytest -q -m "not ($(INSIDE)) and not ($(BESIDE))" $(TWICE) || status=$$?; \
	exit $$status

static: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

# Python 3.11 is looked for first, since constraints.txt pins what was tested with it.
$(INSTALLED): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/pip ]; then \
		for candidate in python3.11 python3 python; do \
			if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				python=$$candidate; break; \
			fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "Ferry needs Python 3.11 or newer on the PATH; found: $$(python3 --version 2>&1)" >&2; \
			exit 2; \
		fi; \
		echo "Making $(VENV) with $$($$python --version); the first time takes some minutes."; \
		$$python -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install --disable-pip-version-check \
		--editable '.[$(EXTRAS)]' --constraint constraints.txt
	@touch $@

clean: ## Remove caches and build outputs; runs and the environment stay
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find real sim training deploy configs tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## The same and the environment
	rm -rf $(VENV)
