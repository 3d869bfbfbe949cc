# Everything a newcomer needs: `make demo` shows it working, `make test` proves it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder --durations=20

.PHONY: demo site package bench equivalence soak lint setup clean tools tools-browser tools-network \
  tools-slurm tools-ray tools-libraries tools-trackers test test-fast test-full test-unit test-replicas \
  test-mirrored test-equivalence test-workers test-servers test-commands test-trackers test-browser \
  test-cluster test-horovod test-newcomer

demo: $(STAMP)  ## train a CNN on MNIST with two workers
	$(BIN)/phalanx run --workers 2 examples/mnist.py

# docs/testing.md says what is in which stage and how long each takes.
test: setup tools lint  ## a real run of each kind, and whatever answers quickly: 25 minutes from a fresh clone
	@sh scripts/build_horovod.sh $(VENV) --if-built
	$(PYTEST) -m "not full"

test-fast: setup lint  ## lint, types, and what neither starts a process nor trains: 1 to 2 minutes
	$(PYTEST) tests/unit -m "not full and not process"

test-full: test-unit test-replicas test-mirrored test-equivalence test-workers test-servers test-commands test-trackers test-browser test-cluster test-horovod test-newcomer  ## everything there is, one stage after the other

test-unit: setup tools-network lint  ## units, pages, object storage, doctor, chaos
	$(PYTEST) tests/unit tests/docs tests/storage tests/doctor tests/chaos -m "not horovod"

test-replicas: setup  ## several replicas in one process
	$(PYTEST) tests/replicas -m "not horovod"

test-mirrored: setup  ## one, two and three replicas in one process against one device
	$(PYTEST) tests/equivalence -m "not horovod" -k test_mirrored

test-equivalence: setup  ## one, two and three workers against one device, and the equivalence table
	$(PYTEST) tests/equivalence -m "not horovod" -k "not test_mirrored"

test-workers: setup  ## several workers
	$(PYTEST) tests/workers -m "not horovod"

test-servers: setup  ## parameter servers
	$(PYTEST) tests/parameter_server -m "not horovod"

test-commands: setup tools-libraries  ## the real command, the examples, scripts with Keras's libraries
	$(PYTEST) tests/command tests/examples -m "not horovod"

test-trackers: setup tools-trackers  ## real experiment trackers: wandb, MLflow, Comet, Trackio, Aim
	$(subst $(BIN)/,$(VENV)/trackers/bin/,$(PYTEST)) tests/trackers

test-browser: setup tools-browser site  ## TensorBoard, the report, timelines and the site in Chromium
	$(PYTEST) tests/browser -m "not horovod"

test-cluster: setup tools-network tools-slurm tools-ray  ## hosts in network namespaces and a real Slurm, which need root, else skipped; a real Ray
	$(PYTEST) tests/cluster -m "not horovod"

test-horovod: setup tools-network  ## what needs Horovod, which is built first and kept in ~/.cache/phalanx
	sh scripts/build_horovod.sh $(VENV)
	$(PYTEST) -m horovod

test-newcomer: package  ## the first ten minutes in a fresh environment, with the time of each step
	$(PYTHON) scripts/first_ten_minutes.py

tools: tools-browser tools-network tools-slurm tools-ray

tools-browser:
	sh scripts/install_chromium.sh
tools-network:
	sh scripts/install_network_tools.sh
tools-slurm:
	sh scripts/install_slurm.sh
tools-ray: setup
	sh scripts/install_ray.sh $(VENV)
tools-libraries: setup
	sh scripts/install_keras_libraries.sh $(VENV)
tools-trackers: setup
	sh scripts/install_trackers.sh $(VENV)

bench: $(STAMP)  ## measure what steps and gradient logging cost; writes docs/benchmarks.md
	$(BIN)/python benchmarks/step_time.py --write
	$(BIN)/python benchmarks/gradient_logging.py --write
	$(BIN)/python benchmarks/debugging.py --write
	$(BIN)/python benchmarks/batchnorm.py --write
	$(BIN)/python benchmarks/strategies.py --write
	$(BIN)/python benchmarks/recovery.py --write
	$(BIN)/python benchmarks/checkpoint.py --write
	$(BIN)/python benchmarks/input.py --write
	$(BIN)/python benchmarks/decoding.py --write

equivalence: $(STAMP)  ## hold replicas against one device; writes docs/equivalence-table.md
	$(BIN)/python benchmarks/equivalence.py --write

soak: $(STAMP)  ## 500 faults drawn at random over a small training; writes docs/chaos.md
	$(BIN)/python benchmarks/soak.py --write

lint: $(STAMP)  ## style, types, who may import what, and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell src tests docs examples benchmarks scripts site *.md Makefile
	! grep -rniwE -f scripts/phrases.txt src tests docs examples benchmarks $(filter-out CHANGELOG.md,$(wildcard *.md)) \
	  --include='*.py' --include='*.md' --exclude-dir=decisions

site: $(VENV)/.installed-docs  ## the documentation in build/site, which needs no network
	$(BIN)/python site/build.py

package:  ## sdist and wheel in dist/, checked, and the wheel installed in an environment of its own
	sh scripts/check_package.sh $(PYTHON)

setup: $(STAMP)

# Not compiled: Python compiles what is imported, and most of 25,000 files never are.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e ".[cpu,dev]"
	touch $@

$(VENV)/.installed-docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
