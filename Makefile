# Everything a newcomer needs: `make demo` shows it working, `make test` proves it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint bench equivalence setup clean

demo: $(STAMP)  ## train a CNN on MNIST with two workers
	$(BIN)/phalanx run --workers 2 examples/mnist.py

test: $(STAMP) lint  ## the whole test suite
	sh scripts/install_chromium.sh
	$(BIN)/python -m pytest -n 2 --dist loadgroup

bench: $(STAMP)  ## measure what steps and gradient logging cost; writes docs/benchmarks.md
	$(BIN)/python benchmarks/step_time.py --write
	$(BIN)/python benchmarks/gradient_logging.py --write

equivalence: $(STAMP)  ## hold replicas against one device; writes docs/equivalence-table.md
	$(BIN)/python benchmarks/equivalence.py --write

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[cpu,dev]"
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
