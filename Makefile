# Everything a newcomer needs: `make demo` shows it working, `make test` proves it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-short test-long test-full test-cluster test-horovod lint bench equivalence soak setup clean

demo: $(STAMP)  ## train a CNN on MNIST with two workers
	$(BIN)/phalanx run --workers 2 examples/mnist.py

test: test-short test-long test-cluster test-horovod  ## the whole test suite

test-short: $(STAMP) lint  ## all but the long tests, in a quarter of an hour on two cores
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not long and not cluster and not horovod"

test-long: $(STAMP)  ## whole commands, a browser, examples, three processes
	sh scripts/install_chromium.sh
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "long and not horovod and not full"

test-full: $(STAMP)  ## what the build has no time for: the equivalence suite and callbacks on three workers, more by Slurm, by Ray and as pods
	sh scripts/install_network_tools.sh
	sh scripts/install_slurm.sh
	sh scripts/install_ray.sh $(VENV)
	sh scripts/build_horovod.sh $(VENV) || echo "SKIPPED: what needs Horovod of these tests." >&2
	$(BIN)/python -m pytest -n 2 --dist loadscope -m full

test-cluster: $(STAMP)  ## hosts of their own (network namespaces) and a real Slurm, which need root, else skipped; a real Ray
	sh scripts/install_network_tools.sh
	sh scripts/install_slurm.sh
	sh scripts/install_ray.sh $(VENV)
	$(BIN)/python -m pytest -n 0 -m "cluster and not full"

test-horovod: $(STAMP)  ## what needs Horovod, which is built first; says so where that cannot be done
	sh scripts/test_horovod.sh $(VENV)

bench: $(STAMP)  ## measure what steps and gradient logging cost; writes docs/benchmarks.md
	$(BIN)/python benchmarks/step_time.py --write
	$(BIN)/python benchmarks/gradient_logging.py --write
	$(BIN)/python benchmarks/debugging.py --write
	$(BIN)/python benchmarks/strategies.py --write
	$(BIN)/python benchmarks/recovery.py --write
	$(BIN)/python benchmarks/checkpoint.py --write
	$(BIN)/python benchmarks/input.py --write

equivalence: $(STAMP)  ## hold replicas against one device; writes docs/equivalence-table.md
	$(BIN)/python benchmarks/equivalence.py --write

soak: $(STAMP)  ## 200 faults drawn at random over a small training; writes docs/chaos.md
	$(BIN)/python benchmarks/soak.py --write

lint: $(STAMP)  ## style, types, and who may import what
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[cpu,dev]"
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
