# Every target makes the environment that it needs, from nothing but Python; a change of pyproject.toml makes it anew.

PYTHON ?= python3
# Dependency groups for the tests: "test runtimes" adds PyTorch and MKL, "test runtimes gpu" CuPy for a machine with a
# card, and the tests run on them as well.
TEST_GROUPS ?= test
# How many processes share the tests, each of them with one thread but where tests say more: threads of several processes
# that are more than the CPUs wait for one another.
WORKERS ?= 2
test test-slow: export OMP_NUM_THREADS ?= 1
TESTED := .venv/$(shell echo $(TEST_GROUPS) | tr ' ' +)
BIN := .venv/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow bench figures clean

# What is measured beside peers, and what is long and has none.
BENCHES := $(wildcard $(patsubst %,benchmarks/%.py,optree threads products mkl_functions primitives sequences steps))
CAMPAIGNS := $(filter-out $(BENCHES),$(wildcard benchmarks/[!_]*.py))

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: .venv/viz  ## a network learns to read handwritten digits; it is left in digits.neon, its curves in digits.png
	$(BIN)/neonlite train digits --save digits.neon --plot digits.png

test: $(TESTED)  ## format, lint, types, tests, doctests and notebooks (under 10 minutes)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) -m "not slow"

test-slow: $(TESTED)  ## long random campaigns in short form
	$(BIN)/pytest -n $(WORKERS) -m slow

bench: .venv-peers/peers  ## speed and memory beside PyTorch, JAX and numexpr: tables, also in benchmarks/results/
	$(call each,$(BENCHES))

figures: .venv-peers/peers  ## what bench does, and the long campaigns: accuracy, start, survival
	$(call each,$(BENCHES) $(CAMPAIGNS))

clean:  ## remove environments, caches and built files
	rm -rf .venv .venv-peers .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -prune -exec rm -rf {} +

# One script after another, also after one that failed; $(1): scripts.
define each
@status=0; for script in $(1); do .venv-peers/bin/python $$script || status=1; done; exit $$status
endef

# --- environments ---

# A fresh environment in the target's folder, with neonlite as it stands here; $(1): what else pip is to install.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "neonlite needs Python 3.11 or newer, but \
	$(PYTHON) is %d.%d: choose another, as in make PYTHON=python3.12" % sys.version_info[:2])'
$(PYTHON) -m venv --clear $(@D)
$(@D)/bin/python -m pip install -qq --upgrade "pip>=25.1"
$(@D)/bin/python -m pip install -qq --editable . $(1)
@touch $@
endef

.venv/core: pyproject.toml
	$(call environment)

.venv/viz: .venv/core
	$(BIN)/python -m pip install -qq --editable ".[viz]"
	@touch $@

$(TESTED): .venv/core
	$(BIN)/python -m pip install -qq $(addprefix --group ,$(TEST_GROUPS))
	@touch $@

.venv-peers/peers: pyproject.toml
	$(call environment,--group peers)
