# Two commands are enough on a fresh machine: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install demo test soak search lint types imports pytest pytest-pure pytest-real bench clean

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	touch $(STAMP)

demo: install
	$(BIN)/everstep demo

test: install lint types imports pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports

# Beside each other: the tests with processes mostly wait, and leave a core to those that only compute.
pytest: install
	@$(MAKE) --no-print-directory -j2 pytest-pure pytest-real

pytest-pure: install
	@nice $(BIN)/pytest --ignore=tests/integration > .pytest-pure.log 2>&1; \
	code=$$?; cat .pytest-pure.log; rm -f .pytest-pure.log; exit $$code

pytest-real: install
	$(BIN)/pytest tests/integration

soak: install
	$(BIN)/pytest -m soak

search: install
	$(BIN)/pytest tests/property --hypothesis-profile=search

bench: install
	$(BIN)/python bench/recovery.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
