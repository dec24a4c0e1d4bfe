# make demo | test | check | benchmark: each sets up .venv first when it is missing or out of date.
#
#   PYTHON  the interpreter that the virtual environment is made from
#   CUDA    the CUDA toolkit extra: cu13 or cu12 (default: what the installed torch was built for, else cu13)
#   ARGS    passed on to pytest, or to the benchmarks

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: demo test check format benchmark clean

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadgroup --assemble $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

benchmark: $(STAMP)
	$(BIN)/python -m benchmarks $(or $(ARGS),all)

$(STAMP): pyproject.toml tools/setup.sh
	PYTHON="$(PYTHON)" CUDA="$(CUDA)" bash tools/setup.sh "$(VENV)"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
