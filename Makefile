# Every target makes the environment that it needs, with the packages that it needs; a later one adds its own.
# tests make certificates with the command openssl.
#
#   make demo              train on a partitioned graph with two processes
#   make demo-graph-store  the same with a storage and a compute cluster, all on this machine
#   make demo-links        link prediction
#   make demo-tables       from Parquet tables to predictions with their ids
#   make demo-ray          training and a graph store on Ray, whose server is killed once
#   make test              lint, types, each behaviour once: on Python 3.11, with graphlearn-torch
#   make test-all          the same, and the wide matrices: each behaviour in each deployment
#   make test-tls          the cluster tests once more, every connection encrypted by certificates
#   make test-modern       the tests on a newer Python, without it (PYTHON=python3.13)
#   make test-native       the tests with graphlearn-torch's native library loaded
#   make test-oldest       what the package rests on, on the oldest torch and PyG that it claims
#   make coverage          the tests, and which lines they reach, into out/coverage/index.html
#   make image             the steps of the Dockerfile in a clean folder, without a container engine
#   make release-check     the wheel alone on each Python that is here: README, ten pages; what a person has to do
#   make docs              the site, into docs/_build/html
#   make bench             the benchmarks in examples/benchmarks
#   make gpu               GPU tests and benchmarks, with the torch that is there (ARGS=--rehearse: small, on the CPU)
#   make pack-gpu          the packages that a GPU machine without a network lacks, into .gpu_pack
#   make chaos             real jobs under drawn faults, each epoch against an undisturbed one
#   make compare-faults    what loaders do when a worker is killed...: ours, PyG, graphlearn-torch
#   make simulate          the coordination of 16 to 4,096 ranks, and 200 schedules of faults
#
# PYTHON=python3.12 names the interpreter; otherwise the newest that is found is taken, by make gpu the
# first that has torch.

PYTHON ?=
NEWEST = .ci/in-venv $(or $(PYTHON),newest)
TESTED = .ci/in-venv python3.11
MODERN = .ci/in-venv $(or $(PYTHON),python3.13)
NATIVE = VENV=.venv-native CONSTRAINTS=.ci/constraints-native.txt $(TESTED)
# what a demo needs, instead of all that the tests do
demo-tables: export EXTRAS = examples,tables
demo-ray: export EXTRAS = examples,ray
demo demo-graph-store demo-links: export EXTRAS = examples
docs: export EXTRAS = dev,docs,examples,metis,objects,ray,tables
pack-gpu: export EXTRAS = gpu
# a numba cache of its own: another release's in the checkout would be thrown away, and this one's by it
OLDEST = NUMBA_CACHE_DIR=$(CURDIR)/.venv-oldest/numba VENV=.venv-oldest CONSTRAINTS=.ci/constraints-oldest.txt EXTRAS=metis,test .ci/in-venv python3.11
SEAMS = tests/test_init.py tests/runtime/glt_classes tests/dataset tests/sampler tests/batch tests/pyg tests/runtime/transport \
  tests/loader/test_neighbor.py tests/loader/test_link.py tests/loader/test_ppr.py
TORCHRUN = OMP_NUM_THREADS=1 $(NEWEST) torchrun --standalone --nproc-per-node 2
SCRIPTS = .ci/in-venv .ci/find-python .ci/install .ci/run .ci/with-torch $(wildcard examples/slurm/*.sbatch)
LINT = $(TESTED) ruff check . && $(TESTED) ruff format --check . && $(TESTED) shellcheck $(SCRIPTS) \
	&& $(TESTED) mypy
ARGS ?=

# Where it is set, each process of the tests would compile the package and rewrite all tests again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-graph-store demo-links demo-tables demo-ray test test-all lint coverage image release-check docs bench gpu pack-gpu chaos compare-faults simulate test-tls test-modern test-native test-oldest clean

help:
	@sed -n 's/^#   //p' Makefile

venv:
	@$(TESTED) true

demo:
	@$(TORCHRUN) examples/train_nodes.py $(ARGS)

demo-graph-store:
	@$(NEWEST) python examples/graph_store/demo.py $(ARGS)

demo-links:
	@$(TORCHRUN) examples/link_prediction.py $(ARGS)

demo-tables:
	@$(TORCHRUN) examples/train_tables.py $(ARGS)

demo-ray:
	@$(NEWEST) python examples/ray/demo.py $(ARGS)

lint:
	$(LINT)

# Types take one core: they are checked while the tests start, wait for each other and end.
define CHECKED_AND_TESTED
@$(TESTED) true
@($(LINT)) & lint=$$!; failed=0; \
$(TESTED) python -m pytest -n 4 $(1) $(ARGS) || failed=$$?; \
wait $$lint || { echo "lint or types failed: see above, or run make lint" >&2; failed=1; }; \
exit $$failed
endef

test:
	$(call CHECKED_AND_TESTED,-m "not wide")

test-all:
	$(call CHECKED_AND_TESTED,--hypothesis-profile=all)

test-tls:
	GIGL_LOADER_TEST_TLS=1 $(TESTED) python -m pytest -n 4 tests/graph_store tests/loader/link tests/loader $(ARGS)

test-modern:
	$(MODERN) python -m pytest -n 4 $(ARGS)

test-native:
	$(NATIVE) python -c 'from gigl_loader.runtime import glt_classes; assert glt_classes.native_available'
	$(NATIVE) python -m pytest -n 4 $(ARGS)

test-oldest:
	$(OLDEST) python -m pytest -n 4 $(SEAMS) $(ARGS)

coverage:
	$(TESTED) coverage erase
	$(TESTED) coverage run -m pytest -n 4 $(ARGS)
	$(TESTED) coverage combine -q
	$(TESTED) coverage html -q -d out/coverage
	$(TESTED) coverage report

image:
	@$(TESTED) python .ci/image.py $(ARGS)

release-check:
	@EXTRAS=release $(TESTED) python .ci/release_check.py $(ARGS)

docs:
	$(TESTED) python -m sphinx -W --keep-going -q -b html docs docs/_build/html/$(DOCS_VERSION)
	@echo "built docs/_build/html/$(if $(DOCS_VERSION),$(DOCS_VERSION)/)index.html"

bench:
	@set -e; for script in examples/benchmarks/*/bench*.py; do echo "== $$script"; $(NEWEST) python $$script $(ARGS); done

gpu:
	@.ci/with-torch "$(PYTHON)" examples/benchmarks/gpu/bench.py $(ARGS)

pack-gpu:
	@$(TESTED) python .ci/pack_gpu.py $(ARGS)

chaos:
	@$(TESTED) python examples/benchmarks/faults/chaos.py $(ARGS)

compare-faults:
	@$(TESTED) python examples/benchmarks/faults/compare.py $(ARGS)

simulate:
	@$(TESTED) python examples/benchmarks/at_size/simulate.py $(ARGS)

clean:
	rm -rf .venv .venv-gpu .venv-modern .venv-native .venv-oldest docs/_build
