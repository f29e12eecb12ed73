# Two commands are enough on a machine with python3 and pip: `make verify` and `make test`.
# Each makes its own virtual environment in .venv the first time; later runs start at once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES ?= 0

.PHONY: help verify test test-slow test-accelerator lint types format bench docs notebooks clean

help:
	@echo "make verify   install, then check every rule against jax.vjp (the main job)"
	@echo "make test     install, then run the tests"
	@echo "make test-accelerator   the tests that compute, on the GPU or TPU that jax finds"
	@echo "make lint     ruff and pyright        make format   ruff format"
	@echo "make bench    speed against jax and other libraries: the table of bars (ARGS=--full: everything)"
	@echo "make docs     the documentation, in docs/_build/html"
	@echo "make notebooks   the tutorial in JupyterLab"
	@echo "make clean    remove the virtual environment and caches"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# A stamp per set of extras: installing again only when pyproject.toml changed, or what is built of C.
TO_BUILD := pyproject.toml hatch_build.py $(wildcard tapejax/native/*.[ch]) tapejax/native/sources.py

$(VENV)/.installed: $(BIN)/python $(TO_BUILD)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-%: $(BIN)/python $(TO_BUILD)
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

verify: $(VENV)/.installed
	$(BIN)/python -m tapejax verify --quick

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow $(ARGS)

# On a GPU or TPU: install the jax of the device into $(VENV) first. One process: it takes the device's memory.
# Matrix products in full float32, which the tests' tolerances are for; XLA optimises as it does for users.
test-accelerator: $(VENV)/.installed-test
	JAX_DEFAULT_MATMUL_PRECISION=highest XLA_FLAGS="$$XLA_FLAGS --xla_backend_optimization_level=3" \
	  $(BIN)/python -m pytest -q -m "accelerator and not slow" $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev $(VENV)/.installed-test  # it looks at what the optional parts import
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html $(ARGS) docs docs/_build/html
	$(BIN)/python docs/extensions/offline.py docs/_build/html
	@echo "see docs/_build/html/index.html"

notebooks: $(VENV)/.installed-notebooks
	$(BIN)/python -m jupyterlab notebooks

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache docs/_build docs/tutorial
