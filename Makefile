# Each target makes its own .venv from the pinned versions first; a second run starts at once.
PYTHON ?= python3
INSTALLED := .venv/installed
INSTALLED_FOR_PARITY := .venv/installed-for-parity

.PHONY: parity test test-jax test-thorough test-lowest test-latest lint format tables answers pictures docs dist bench clean

parity: $(INSTALLED_FOR_PARITY)  ## the main job: the parity matrix, the worked cases, and a network trained in four spellings
	.venv/bin/python -m interop
	.venv/bin/python examples/worked_cases.py
	.venv/bin/python examples/digits.py

# Most programs run once, so that compiling them is most of the work. XLA rewrites them as ever; what is left out is how
# LLVM improves their machine code. Programs are not told which lines of Python they come from, as a test is called through
# fifty of them. Threads of torch sleep while they wait, since two processes share the cores. And Python keeps what it has
# compiled, for the many processes that tests start.
QUICK := JAX_DISABLE_MOST_OPTIMIZATIONS=1 \
	JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0 OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE=

test: $(INSTALLED)  ## the tests but for those marked thorough, and which of them took longest
	$(QUICK) .venv/bin/python -m pytest -n 2 --dist loadfile --durations=10 -m "not thorough" $(call PART,0,3)

test-thorough: $(INSTALLED)  ## all tests, in programs as XLA compiles them for users; an hour or more
	.venv/bin/python -m pytest -n 2 --dist loadfile --durations=10

# JAX needs a later Python than torch's CPU build has here, so the newest of both are tested apart from the pinned ones.
# Pyenv hides the Pythons that are not selected: they are looked for in its folder too.
PYENV_ROOT ?= $(HOME)/.pyenv
NEWEST_PYTHON ?= $(firstword $(foreach minor,13 12,$(shell for python in python3.$(minor) \
	$(PYENV_ROOT)/versions/3.$(minor).*/bin/python; do "$$python" -c "" 2>/dev/null && echo "$$python"; done)))

# PARTS=1, for CI: `make test` runs every third test of each module, and `make test-jax` every sixth, one of the others.
# The hash of the commit draws them, so that each test soon meets both versions of JAX.
DRAWN := $(shell printf '%d' 0x$$(git rev-parse --short=7 HEAD 2>/dev/null) 2>/dev/null)
PART = $(if $(PARTS),--part $(shell expr \( $(DRAWN) + $1 \) % $2)/$2)

# test-jax: JAX=0.11.0 takes that version. WORKERS is the number of processes.
WORKERS ?= 2
JAX_VENV := .venv-jax$(JAX)
VERSIONS_jax := $(if $(JAX),jax==$(JAX) jaxlib==$(JAX),jax jaxlib) flax equinox optax
ifeq ($(NEWEST_PYTHON),)
test-jax:
	@echo "test-jax is skipped: no Python 3.12 or 3.13 was found. Name one: make test-jax NEWEST_PYTHON=python3.13"
else
test-jax: $(JAX_VENV)/installed  ## the tests that need no torch, with the newest Python, JAX, Flax, Equinox and Optax
	$(QUICK) $(JAX_VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not thorough" tests jaxclamp \
		$(call PART,1,6)
endif

# The lowest versions of torch and JAX that pyproject.toml declares, and the newest, beside the pinned ones of all else
# but setuptools, which torch bounds.
VERSIONS_lowest := torch==2.11.0 jax==0.10.0 jaxlib==0.10.0
VERSIONS_latest := torch jax jaxlib
PYTHON_lowest = $(PYTHON)
PYTHON_latest = $(or $(NEWEST_PYTHON),$(PYTHON))
test-lowest test-latest: test-%: .venv-%/installed  ## the tests with those; torch alone has several GB
	$(QUICK) .venv-$*/bin/python -m pytest -n 2 --dist loadfile -m "not thorough"

lint: $(INSTALLED)
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy

format: $(INSTALLED)
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

tables: $(INSTALLED)  ## the generated tables of the documentation, and the stubs of interop
	.venv/bin/python docs/generate.py
	.venv/bin/python -m tools.stubs
	.venv/bin/python -m tests.torch.placements

pictures: $(INSTALLED)  ## the pictures of README and of the pages, in docs/_static
	.venv/bin/python docs/pictures.py

# answers: without arguments, those of the frameworks that are installed here. FRAMEWORK=torch VERSION=2.14.0 asks that
# version in an environment of its own, which is removed afterwards. For keras, KERAS_BACKEND is jax, torch or tensorflow.
KERAS_BACKEND ?= jax
ASKED_jax = jax==$(VERSION) jaxlib==$(VERSION)
ASKED_keras = keras==$(VERSION) $(filter tensorflow,$(KERAS_BACKEND))
ASKED_mlx = mlx[cpu]==$(VERSION)
ASKED_paddle = paddlepaddle==$(VERSION)
ASKED = $(or $(ASKED_$(FRAMEWORK)),$(FRAMEWORK)==$(VERSION))

answers: $(if $(FRAMEWORK),,$(INSTALLED))  ## records, in interop/answers, what frameworks answer at ties
ifdef FRAMEWORK
	$(if $(VERSION),,$(error which version of $(FRAMEWORK)? For example VERSION=2.14.0))
	trap 'rm -rf .venv-answers' EXIT; set -e; \
	$(PYTHON) -m venv --clear .venv-answers; \
	grep -vE '^$(FRAMEWORK)(lib)?==' constraints.txt > .venv-answers/constraints.txt; \
	.venv-answers/bin/python -m pip install --disable-pip-version-check --no-cache-dir --no-compile $(ASKED); \
	.venv-answers/bin/python -m pip install --disable-pip-version-check --no-cache-dir --no-compile \
		--constraint .venv-answers/constraints.txt --editable '.[cli]'; \
	KERAS_BACKEND=$(KERAS_BACKEND) .venv-answers/bin/python -m tools.record_frameworks $(FRAMEWORK)
else
	.venv/bin/python -m tools.record_frameworks
endif

# GALLERY="relu amax" draws these ops alone: the report of all ops takes most of the time.
GALLERY ?=
GALLERY_DRAWN := docs/_gallery/$(if $(GALLERY),part,all)-drawn

docs: $(INSTALLED) $(GALLERY_DRAWN)  ## the documentation, as HTML in docs/_build/html; a warning is an error
	.venv/bin/python -m sphinx --fail-on-warning --nitpicky --keep-going --quiet docs docs/_build/html

$(GALLERY_DRAWN): docs/gallery.py $(shell find jaxclamp interop -name '*.py') | $(INSTALLED)
	rm -rf docs/_gallery
	$(QUICK) .venv/bin/python docs/gallery.py $(GALLERY)
	touch $@

# dist: a second environment has the wheel and what it declares to need; torch is not among that.
dist: $(INSTALLED)  ## sdist and wheel in dist/, and a test of the wheel where torch is not installed
	rm -rf dist
	.venv/bin/python -m build --outdir dist
	$(PYTHON) -m venv --clear dist/venv
	dist/venv/bin/python $(INSTALL) --constraint constraints.txt dist/*.whl
	cd dist && venv/bin/python ../tests/project/installed.py *.tar.gz

# bench: ALLOCATOR=default lets glibc return large blocks to the system, and pays for new pages at each call;
# DISPATCH=asynchronous hands small computations to XLA's own thread.
ALLOCATOR ?= reuse
DISPATCH ?= synchronous
MALLOC_reuse := MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=1000000000
BENCH := JAXCLAMP_DISPATCH=$(DISPATCH) $(MALLOC_$(ALLOCATOR)) .venv/bin/python
RUN := benchmarks/results/$(ALLOCATOR)-$(DISPATCH)

bench: $(INSTALLED)  ## every op beside native ones: times as ratios and as a plot, memory; about 30 minutes
	mkdir -p benchmarks/results
	$(BENCH) -m pytest benchmarks --benchmark-columns=median,iqr,rounds --benchmark-sort=mean --benchmark-group-by=group \
		--benchmark-json=$(RUN).json
	$(BENCH) benchmarks/plot.py $(RUN).json $(RUN).png
	$(BENCH) benchmarks/ratios.py
	$(BENCH) benchmarks/call.py
	$(BENCH) benchmarks/memory.py
	$(BENCH) benchmarks/start.py
	$(BENCH) benchmarks/native.py
	$(BENCH) benchmarks/training.py
	$(BENCH) benchmarks/programs.py
	$(BENCH) benchmarks/porting.py

clean:
	rm -rf .venv .venv-*/ dist docs/_build docs/_gallery

# Modules are compiled when they are first imported: of all that is installed, that is a fifth.
INSTALL := -m pip install --disable-pip-version-check --no-compile

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(INSTALL) --constraint constraints.txt --editable '.[test,lint,docs,release]'
	touch $(INSTALLED_FOR_PARITY) $@

$(INSTALLED_FOR_PARITY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(INSTALL) --constraint constraints.txt --editable '.[plot]' scikit-learn autograd tinygrad
	touch $@

$(JAX_VENV)/installed: pyproject.toml constraints.txt
	$(NEWEST_PYTHON) -m venv --clear $(JAX_VENV)
	sed -E '/^(jax|jaxlib|flax|equinox|optax)==/d' constraints.txt > $(JAX_VENV)/constraints.txt
	$(JAX_VENV)/bin/python $(INSTALL) --constraint $(JAX_VENV)/constraints.txt $(VERSIONS_jax) --editable '.[test-jax]'
	touch $@

.venv-%/installed: pyproject.toml constraints.txt
	$(PYTHON_$*) -m venv .venv-$*
	sed -E '/^(torch|jax|jaxlib|setuptools)==/d' constraints.txt > .venv-$*/constraints.txt
	.venv-$*/bin/python $(INSTALL) --constraint .venv-$*/constraints.txt --upgrade $(VERSIONS_$*) --editable '.[test]'
	touch $@
