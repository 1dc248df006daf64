# make install, make demo and make test do everything on a fresh clone: virtual environment, pinned install, run.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test test-slow bench faults docs lint format clean

install: .venv/demo.done

demo: .venv/demo.done
	$(BIN)/tilework demo --out demo-out

test: .venv/dev.done
	rm -f .coverage .coverage.*
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --cov --cov-report=
	$(BIN)/coverage report

test-slow: .venv/dev.done
	$(BIN)/python -m pytest -m slow

bench: .venv/dev.done
	$(BIN)/python benchmarks/frame.py
	$(BIN)/python benchmarks/all.py

# the fault matrix at nightly size: hours; rows that results/faults.json holds are not run again
faults: .venv/faults.done
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m faults --out results/faults.json --page docs/faults.md

docs: .venv/docs.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: .venv/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev.done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the stamps are newer than what they depend on as long as nothing changed: no reinstall
.venv/base.done:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the pinned versions need Python 3.11: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo.done: .venv/base.done pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo]'
	touch $@

.venv/dev.done: .venv/base.done pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/demo.done

.venv/faults.done: .venv/dev.done
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[fuzz]'
	touch $@

.venv/docs.done: .venv/base.done pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv demo-out site .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.*
