# `make` alone lists the targets. Needed: make, Python 3.11 or newer, and a package index that pip reaches.
# Stamp files say what is done already, so that a second run of any target takes seconds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
BENCH_ARGS ?= --memory --readme
RUN_TESTS := $(BIN)/python -m pytest -n 2 --dist worksteal
SOURCES := $(shell find src -name '*.py' -o -name '*.md')

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DELETE_ON_ERROR:
.PHONY: help demo lab test test-slow test-all lint format types browser launchers versions wheel wheel-check docs bench clean

help:
	@echo "make demo         run demo.ipynb; leaves the executed notebook and a page in build/"
	@echo "make lab          open demo.ipynb in JupyterLab"
	@echo "make test         the quick tests (PYTEST_ARGS='-k text' chooses among them)"
	@echo "make test-all     the quick and the slow tests"
	@echo "make browser      JupyterLab in the Chromium of this machine; screenshots in build/screenshots"
	@echo "make launchers    clusters started by mpirun and Slurm, or on two hosts (namespaces), where that is possible"
	@echo "make lint types   ruff, mypy          make format   let ruff format the code"
	@echo "make versions     the quick tests and the error index's examples on the oldest, a middle and the newest"
	@echo "                  JAX, Python and IPython"
	@echo "make wheel        wheel and sdist in dist/     make wheel-check   the same, tried in an empty environment"
	@echo "make docs         the site, its examples run and its links checked, in build/docs"
	@echo "make bench        measure, a quarter of an hour; table and chart into README.md"
	@echo "                  (BENCH_ARGS='tiny --rounds 3' runs a part, BENCH_ARGS=--help tells all)"
	@echo "make clean        remove all that these targets made"
	@echo "PYTHON=python3.12 chooses the Python that .venv is made with (3.11 or newer)"

demo: build/demo.html
	@echo "Executed notebook: build/demo.ipynb"
	@echo "The same as a page: build/demo.html"

lab: $(VENV)/.demo $(VENV)/.lab
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) demo.ipynb

test: $(VENV)/.test
	$(RUN_TESTS) -m "not slow" $(PYTEST_ARGS)

# The slow tests of the explanations share what one run of many processes found, two at a time by themselves.
test-slow: $(VENV)/.test
	$(RUN_TESTS) -m "slow and not browser and not launcher" --ignore tests/explanations $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m slow tests/explanations $(PYTEST_ARGS)

test-all: test test-slow

# In one process: all tests share one JupyterLab and one Chromium. Screenshots go to build/screenshots.
browser: $(VENV)/.browser build/docs/index.html
	$(BIN)/python -m pytest -m browser tests/browser $(PYTEST_ARGS)

# In one process: they share the one-node Slurm that they set up in a folder, or two hosts in namespaces.
launchers: $(VENV)/.test $(VENV)/.mpi
	PATH="$$PATH:/usr/sbin" $(BIN)/python -m pytest -m launcher tests/cluster $(PYTEST_ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.lint
	$(BIN)/mypy

versions:
	$(PYTHON) tools/versions.py $(PYTEST_ARGS)

wheel: dist/.built

wheel-check: dist/.built
	$(PYTHON) tools/wheel_check.py dist

docs: build/docs/index.html
	@echo "The site: build/docs/index.html"

build/docs/index.html: tools/docs.py CONTRIBUTING.md $(wildcard docs/*.md) $(SOURCES) $(VENV)/.test
	$(BIN)/python tools/docs.py build/docs

# On a machine that does nothing else. Numbers go to build/bench, too.
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools benchmarks -name __pycache__ -prune -exec rm -rf {} +

build/demo.html: build/demo.ipynb
	@$(BIN)/jupyter nbconvert --log-level ERROR --to html --output-dir build build/demo.ipynb

build/demo.ipynb: demo.ipynb $(SOURCES) $(VENV)/.demo
	@echo "Running demo.ipynb: this takes a minute or two"
	@$(BIN)/jupyter nbconvert --log-level WARN --to notebook --execute --output-dir build demo.ipynb \
	  --ExecutePreprocessor.timeout=600 \
	  --KernelManager.transport=ipc --KernelManager.connection_file="$$(mktemp -d)/kernel.json"

dist/.built: pyproject.toml README.md LICENSE tools/description.py $(SOURCES) $(VENV)/.build
	@rm -rf dist
	$(BIN)/python -m build --outdir dist .
	@touch $@

# .venv/.demo, .venv/.test, …: the package is installed with that extra.
$(VENV)/.%: pyproject.toml $(VENV)/.python
	@echo "Installing jaxpar_magic[$*] into $(VENV): the first time takes a few minutes"
	@$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	    echo "Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@
