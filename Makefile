# Every target creates the virtual environment that it needs; a change of pyproject.toml recreates it.

PYTHON ?= python3
# Dependency groups for the tests: "test runtimes" adds PyTorch and MKL, "test runtimes gpu" also CuPy for a machine with
# a GPU. The tests run on every runtime that is installed.
TEST_GROUPS ?= test
# The number of pytest processes. Each uses one thread unless a test sets more: several processes with more threads than
# CPUs slow each other down. Of all tests, some wait for processes or timeouts, and leave a tenth of the CPUs' time.
WORKERS ?= 2
test: WORKERS = 3
test test-quick test-slow: export OMP_NUM_THREADS ?= 1
# Without compiled files, each of the processes that the tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# The seed of Hypothesis and of the sample of tests in test-slow; to repeat a run: make test-slow SEED=1795435200.
SEED ?= $(shell date +%s)
test-slow: export NEONLITE_TEST_SEED ?= $(SEED)
TESTED := .venv/$(shell echo $(TEST_GROUPS) | tr ' ' +)
BIN := .venv/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-quick test-slow test-lowest gpu-check release-check bench figures clean

# BENCHES compare with other libraries, CAMPAIGNS do not.
BENCHES := $(wildcard $(patsubst %,benchmarks/%.py,optree functions threads products mkl_functions primitives sequences steps fit csv_files))
CAMPAIGNS := $(filter-out $(BENCHES) $(patsubst %,benchmarks/%.py,gpu_check gpu_run golden),$(wildcard benchmarks/[!_]*.py))

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: .venv/viz  ## train a network on handwritten digits; writes digits.neon and digits.png
	$(BIN)/neonlite train digits --save digits.neon --plot digits.png

test: $(TESTED)  ## format, lint, types, tests, doctests and notebooks; FILES=tests/layers: only these tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pytest -n $(WORKERS) -m "not slow" $(FILES)

test-quick: $(TESTED)  ## one variant of each test that is quick; not of benchmarks, and of several processes
	NEONLITE_TEST_VARIANTS=one $(BIN)/pytest -n $(WORKERS) -m "not slow and not long" \
		$(addprefix --ignore=tests/,benchmarks distributed platforms) $(or $(FILES),neonlite tests)

test-slow: $(TESTED)  ## long randomized tests in short form, and Hypothesis with a new seed
	$(BIN)/pytest -n $(WORKERS) -m "slow or hypothesis" --hypothesis-profile random --hypothesis-seed $(SEED)

test-lowest:  ## tests with the lowest versions of all dependencies, in a new environment
	FILES="$(FILES)" WORKERS=$(WORKERS) .ci/test-lowest $(PYTHON)

gpu-check:  ## on a machine with a GPU: check correctness and speed, in ten minutes and one table
	@python=$(PYTHON); \
	if command -v nvidia-smi > /dev/null && ! PYTHONPATH=.:$$PYTHONPATH $(PYTHON) -c "import cupy, neonlite" 2> /dev/null; \
	then $(MAKE) --no-print-directory TEST_GROUPS="test gpu" .venv/test+gpu || exit 1; python=$(BIN)/python; fi; \
	$$python benchmarks/gpu_check.py

release-check:  ## build the package in dist/, and use it in an empty environment; TAG=v0.1.0 URL=...: for a release
	$(PYTHON) .ci/release.py --tag "$(TAG)" --url "$(URL)"

bench: .venv-peers/peers  ## speed and memory beside PyTorch, JAX and numexpr: tables, also in benchmarks/results/
	$(call each,$(BENCHES))

figures: .venv-peers/peers  ## bench, and the benchmarks without peers: accuracy, import time, fault injection
	$(call each,$(BENCHES) $(CAMPAIGNS))

clean:  ## remove environments, caches and built files
	rm -rf .venv .venv-peers .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -prune -exec rm -rf {} +

# One script after another, also after one that failed; $(1): scripts.
define each
@status=0; for script in $(1); do .venv-peers/bin/python $$script || status=1; done; exit $$status
endef

# --- environments ---

# A new environment in the target's folder with neonlite in editable mode. Without --no-compile, pip would compile many
# modules that are never imported.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "neonlite needs Python 3.11 or newer, but \
	$(PYTHON) is %d.%d: choose another, as in make PYTHON=python3.12" % sys.version_info[:2])'
$(PYTHON) -m venv --clear $(@D)
$(@D)/bin/python -m pip install --no-compile --editable .
endef

# Install dependency groups, which pip before 25.1 does not know; $(1): their names.
define install_groups
$(@D)/bin/python -m pip install --upgrade "pip>=25.1"
$(@D)/bin/python -m pip install $(addprefix --group ,$(1))
@touch $@
endef

.venv/core: pyproject.toml
	$(environment)
	@touch $@

.venv/viz: .venv/core
	$(BIN)/python -m pip install --no-compile "neonlite[viz]"
	@touch $@

$(TESTED): .venv/core
	$(call install_groups,$(TEST_GROUPS))

.venv-peers/peers: pyproject.toml
	$(environment)
	$(call install_groups,peers)
