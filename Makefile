# `make demo` and `make test` set everything up by themselves; the rest works on the same .venv.
# In an image that carries this package (deploy/Dockerfile sets SPECDEC_BIN) the image's own Python is used instead.
PYTHON ?= python3
SPEC ?= build/profiles/demo.yaml
VENV := .venv
ifdef SPECDEC_BIN
BIN := $(SPECDEC_BIN)
RUN := $(PYTHON)
READY :=
else
BIN := $(VENV)/bin
RUN := $(BIN)/python
READY := $(VENV)/.ready
endif
GENAI_VENV := .venv-genai-perf
GENAI_READY := $(GENAI_VENV)/.ready
export PROMPT
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: demo test lint format engines repo serve request load soak bench plan doctor gpu-check audit stop clean venv

demo: engines
	@$(BIN)/specdec demo --spec $(SPEC)

test: engines
	$(RUN) -m pytest $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# DRY_RUN=1 prints the commands of a TensorRT build and runs none.
engines: venv
	@$(BIN)/specdec engines --spec $(SPEC) $(if $(DRY_RUN),--dry-run)

repo: engines
	@$(BIN)/specdec repo --spec $(SPEC)

serve: engines
	@$(BIN)/specdec serve --spec $(SPEC)

request: venv
	@$(BIN)/specdec request --spec $(SPEC) --chat -- "$$PROMPT"

# TOOL=genai-perf uses that one, from an environment of its own; ARGS="--url HOST:PORT" loads a server elsewhere.
load: $(if $(findstring --url,$(ARGS)),venv,engines) $(if $(filter genai-perf,$(TOOL)),$(GENAI_READY))
	@$(BIN)/specdec load --spec $(SPEC) $(if $(TOOL),--tool $(TOOL)) $(ARGS)

$(GENAI_READY): build/genai-perf-constraints.txt | venv
	@echo "setting up $(GENAI_VENV) (once, 950 MB)"
	@$(RUN) -m venv --clear $(GENAI_VENV)
	@$(GENAI_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $< genai-perf
	@touch $@

soak: engines
	@$(BIN)/specdec soak --spec $(SPEC) --minutes $(or $(MINUTES),10) --json runs/soak.json $(ARGS)

bench: engines
	@$(BIN)/specdec bench --spec $(SPEC) --quick --json runs/bench.json --report runs/bench.html

plan: venv
	@$(BIN)/specdec plan $(SPEC)

doctor: venv
	@$(BIN)/specdec doctor $(SPEC)

# The demo pair on a GPU (docs/gpu.md): build, conformance, a short benchmark, one report. ENGINE: tensorrt_llm | embedded
gpu-check: venv
	@$(RUN) build/gpu_check.py $(if $(ENGINE),--engine $(ENGINE))

# Known vulnerabilities (asks an advisory service) and licences of everything that is installed.
audit: venv
	@$(RUN) build/audit.py

stop: venv
	@$(BIN)/specdec stop --spec $(SPEC)

venv: $(READY)

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) build/environment.py $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) $(GENAI_VENV) .cache engines/*/ runs
