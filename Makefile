# `make demo` and `make test` set themselves up: they need Python 3.11 and make, nothing else.
# `make VENV=/some/venv test` uses an environment that is there already.

VENV ?= .venv
PYTHON ?= python3
PY := $(VENV)/bin/python
STAMP := $(VENV)/.wellcond
DEMO := $(VENV)/.wellcond-demo
PYTEST := $(PY) -m pytest -n 2 --dist worksteal

# This clone's code, whatever else the environment has installed; also for the processes that tests start.
export PYTHONPATH := $(CURDIR)/src

.PHONY: setup debian demo test test-all check format bench docs matrix census figure clean

setup: $(STAMP)

# An environment of somebody else's is only written to if it lacks something.
$(STAMP): pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	test "$(VENV)" != .venv && $(PY) .ci/satisfied.py dev || $(PY) -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

# The main job needs neither tests nor documentation.
$(DEMO): pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	test "$(VENV)" != .venv && $(PY) .ci/satisfied.py lab,timm || $(PY) -m pip install --quiet -c constraints.txt -e ".[lab,timm]"
	touch $@

# The tests open the HTML pages in a browser (Debian's, since Playwright's own would be a download of its own), and read
# Debian's copy of Fashion-MNIST.
debian:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } && \
	    test -d /usr/share/datasets/fashion-mnist || { \
	    sudo=$$(test "$$(id -u)" = 0 || command -v sudo); \
	    $$sudo apt-get update -qq && \
	    $$sudo apt-get install -y -qq --no-install-recommends chromium dataset-fashion-mnist > /dev/null; }

demo: $(DEMO)
	$(PY) -m wellcond compare --jobs 2 --out build/demo

test: export OMP_NUM_THREADS = 1
test: setup debian
	$(PYTEST) -m "not long"

test-all: export OMP_NUM_THREADS = 1
test-all: setup debian
	$(PY) benchmarks/record.py docs/test-all.md $(PYTEST)

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: setup
	$(PY) benchmarks/startup.py
	$(PY) benchmarks/bench.py
	$(PY) benchmarks/conditioning.py
	$(PY) benchmarks/jacobian.py
	$(PY) benchmarks/views.py
	$(PY) benchmarks/scale.py
	$(PY) benchmarks/optimizers.py
	$(PY) benchmarks/control.py
	$(PY) benchmarks/recommend.py
	$(PY) benchmarks/diagnose.py
	$(PY) benchmarks/diagram.py
	$(PY) benchmarks/laboratory.py

# The mark tells the tests that the site is there and was built without warnings.
docs: setup
	rm -f build/docs/.complete
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --site-dir build/docs
	touch build/docs/.complete

matrix: setup
	mkdir -p build
	$(PY) -m tests.matrix > build/matrix.md
	mv build/matrix.md docs/matrix.md

# Takes most of an hour; stopped, it goes on where it was.
census: export OMP_NUM_THREADS = 1
census: setup
	$(PY) -m tests.census

figure: setup
	$(PY) docs/figure.py docs/img/conditioned.svg

clean:
	rm -rf build site .mypy_cache .pytest_cache .ruff_cache .hypothesis
