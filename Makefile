# `make demo` and `make test` set everything up by themselves; the rest works on the same .venv.
PYTHON ?= python3
SPEC ?= build/profiles/demo.yaml
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PROMPT
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: demo test lint format engines repo serve request load bench plan doctor stop clean venv

demo: engines
	@$(BIN)/specdec demo --spec $(SPEC)

test: engines
	$(BIN)/python -m pytest $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

engines: venv
	@$(BIN)/specdec engines --spec $(SPEC)

repo: engines
	@$(BIN)/specdec repo --spec $(SPEC)

serve: engines
	@$(BIN)/specdec serve --spec $(SPEC)

request: venv
	@$(BIN)/specdec request --spec $(SPEC) --chat -- "$$PROMPT"

load: venv
	@$(BIN)/specdec load --spec $(SPEC)

bench: engines
	@$(BIN)/specdec bench --spec $(SPEC) --json runs/bench.json

plan: venv
	@$(BIN)/specdec plan $(SPEC)

doctor: venv
	@$(BIN)/specdec doctor $(SPEC)

stop: venv
	@$(BIN)/specdec stop --spec $(SPEC)

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) build/environment.py $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) .cache engines/*/ runs
