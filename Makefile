# Each target makes its own .venv from the pinned versions first; a second run starts at once.
PYTHON ?= python3
INSTALLED := .venv/installed

.PHONY: parity test lint format tables bench clean

parity: $(INSTALLED)  ## the main job: the parity matrix, the worked cases, and a network trained in four spellings
	.venv/bin/python -m interop
	.venv/bin/python -m interop cases
	.venv/bin/python -m interop digits

test: $(INSTALLED)
	.venv/bin/python -m pytest -n 2

lint: $(INSTALLED)
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy

format: $(INSTALLED)
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

tables: $(INSTALLED)  ## the generated tables in the documentation
	.venv/bin/python docs/generate.py

bench: $(INSTALLED)  ## an eager call of every op beside native ones
	.venv/bin/python -m pytest benchmarks --benchmark-columns=median,iqr,rounds --benchmark-sort=mean

clean:
	rm -rf .venv

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint]'
	touch $@
