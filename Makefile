# Every target makes the environment that it needs. A machine needs Python 3.11, make and git.
#
#   make demo              train on a partitioned graph with two processes
#   make demo-graph-store  the same with a storage and a compute cluster, all on this machine
#   make demo-links        link prediction
#   make test              lint, types, tests
#   make test-native       the tests with graphlearn-torch's native library loaded
#   make docs              the site, into docs/_build/html
#   make bench             the benchmarks in examples/benchmarks

PYTHON ?= python3.11
VENV ?= .venv
NATIVE ?= .venv-native
EXTRAS := dev,docs,examples,metis
TORCHRUN = OMP_NUM_THREADS=1 $(VENV)/bin/torchrun --standalone --nproc-per-node 2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-graph-store demo-links test lint docs bench test-native clean

help:
	@sed -n 's/^#   //p' Makefile

# The stamp is written last, so an installation that was broken off starts again.
$(VENV)/.stamp: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install -qq -c .ci/constraints.txt -e '.[$(EXTRAS)]'
	touch $@

$(NATIVE)/.stamp: pyproject.toml .ci/constraints-native.txt
	$(PYTHON) -m venv --clear $(NATIVE)
	$(NATIVE)/bin/python -m pip install -qq -c .ci/constraints-native.txt -e '.[$(EXTRAS)]'
	touch $@

venv: $(VENV)/.stamp

demo: $(VENV)/.stamp
	$(TORCHRUN) examples/train_nodes.py $(ARGS)

demo-graph-store: $(VENV)/.stamp
	$(VENV)/bin/python examples/graph_store/demo.py $(ARGS)

demo-links: $(VENV)/.stamp
	$(TORCHRUN) examples/link_prediction.py $(ARGS)

lint: $(VENV)/.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: lint
	$(VENV)/bin/python -m pytest $(ARGS)

test-native: $(NATIVE)/.stamp
	$(NATIVE)/bin/python -c 'from gigl_loader import _glt; assert _glt.native_available'
	$(NATIVE)/bin/python -m pytest $(ARGS)

docs: $(VENV)/.stamp
	$(VENV)/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "built docs/_build/html/index.html"

bench: $(VENV)/.stamp
	@set -e; for script in examples/benchmarks/*/bench*.py; do echo "== $$script"; $(VENV)/bin/python $$script $(ARGS); done

clean:
	rm -rf $(VENV) $(NATIVE) docs/_build
