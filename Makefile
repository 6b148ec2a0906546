# Two commands on a fresh machine: `make demo` and `make test`. A second call does not reinstall.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test lint serve clean

install: .venv/.installed

.venv/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Python 3.11 to 3.13 is needed; say which with: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

demo: install
	$(BIN)/pate run configs/digits.yaml

test: install
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

serve: install
	$(BIN)/python -m flows.serving

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
