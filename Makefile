# Each target makes its own .venv from the pinned versions first; a second run starts at once.
PYTHON ?= python3
INSTALLED := .venv/installed

.PHONY: parity test test-thorough test-lowest test-latest lint format tables answers pictures docs dist bench clean

parity: $(INSTALLED)  ## the main job: the parity matrix, the worked cases, and a network trained in four spellings
	.venv/bin/python -m interop
	.venv/bin/python -m interop cases
	.venv/bin/python -m interop digits

# Most programs run once, so that compiling them is most of the work. XLA rewrites them as ever; what is left out is how
# LLVM improves their machine code.
QUICK := XLA_FLAGS=--xla_cpu_use_fusion_emitters=false JAX_DISABLE_MOST_OPTIMIZATIONS=1

test: $(INSTALLED)  ## the tests but for those marked thorough, and which of them took longest
	$(QUICK) .venv/bin/python -m pytest -n 2 --dist loadfile --durations=10 -m "not thorough"

test-thorough: $(INSTALLED)  ## all tests, in programs as XLA compiles them for users; half an hour
	.venv/bin/python -m pytest -n 2 --dist loadfile --durations=10

# The lowest versions of torch and JAX that pyproject.toml declares, and the newest, beside the pinned ones of all else
# but setuptools, which torch bounds.
VERSIONS_lowest := torch==2.11.0 jax==0.10.0 jaxlib==0.10.0
VERSIONS_latest := torch jax jaxlib
test-lowest test-latest: test-%: .venv-%/installed  ## the tests with those; torch alone has several GB
	$(QUICK) .venv-$*/bin/python -m pytest -n 2 --dist loadfile -m "not thorough"

lint: $(INSTALLED)
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy

format: $(INSTALLED)
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

tables: $(INSTALLED)  ## the generated table of the documentation, and the stubs of interop
	.venv/bin/python docs/generate.py
	.venv/bin/python -m interop._stubs

pictures: $(INSTALLED)  ## the two pictures of README, in docs/_static
	.venv/bin/python docs/pictures.py

answers: $(INSTALLED)  ## the record, in tests/native_answers, of what the installed versions of frameworks answer
	.venv/bin/python tests/record_native.py

docs: $(INSTALLED) docs/_gallery/drawn  ## the documentation, as HTML in docs/_build/html; a warning is an error
	.venv/bin/python -m sphinx --fail-on-warning --nitpicky --keep-going --quiet docs docs/_build/html

docs/_gallery/drawn: docs/gallery.py $(wildcard jaxclamp/*.py jaxclamp/*/*.py interop/*.py interop/*/*.py) | $(INSTALLED)
	$(QUICK) .venv/bin/python docs/gallery.py

# dist: a second environment has the wheel and what it declares to need; torch is not among that.
dist: $(INSTALLED)  ## sdist and wheel in dist/, and a test of the wheel where torch is not installed
	rm -rf dist
	.venv/bin/python -m build --outdir dist
	$(PYTHON) -m venv --clear dist/venv
	dist/venv/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd dist && venv/bin/python ../tests/installed.py *.tar.gz

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

clean:
	rm -rf .venv .venv-lowest .venv-latest dist docs/_build docs/_gallery

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint,docs,release]'
	touch $@

.venv-%/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-$*
	sed -E '/^(torch|jax|jaxlib|setuptools)==/d' constraints.txt > .venv-$*/constraints.txt
	.venv-$*/bin/python -m pip install --disable-pip-version-check --constraint .venv-$*/constraints.txt --upgrade \
		$(VERSIONS_$*) --editable '.[test]'
	touch $@
