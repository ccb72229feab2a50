# `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
BIN := .venv/bin
PREPARE := $(PYTHON) tests/environment.py
CLUSTER := $(PYTHON) -m tests.cluster
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/strata
MODEL ?= builtin://smollm2-135m
TEXT ?= tests/data/alice.txt
# Several files at a time on two cores, since many tests wait for a process or a server; those on a cluster in two of them.
# Tests start many interpreters, which without compiled files would each compile all they import.
unexport PYTHONDONTWRITEBYTECODE
UNIT := $(BIN)/pytest -m "not cluster and not real" -n 3 --dist loadfile --no-loadscope-reorder
REAL := $(BIN)/pytest -m real -n 2 --dist loadfile
ON_CLUSTERS := $(BIN)/pytest -m cluster -n 2 --dist loadfile --no-loadscope-reorder --durations 40

.PHONY: help release bundle demo demo-down test lint unit real-test cluster-test cluster-up cluster-down images venv native format constraints manifests golden dashboards docs \
  pictures browser bench-decode bench-gpu bench-operator bench-perplexity chaos equal audit fuzz sanitize soak clean clean-cache packages prometheus gateway clients

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: packages prometheus clients ## operator, agent, model and Prometheus, from nothing to a chat answer (STRATA_KUBECONFIG: on your own cluster)
	@$(BIN)/python -m tests.e2e.demo

demo-down: ## take the demo down again; nothing of it keeps running
	@if [ -n "$$STRATA_KUBECONFIG" ]; then $(BIN)/python -m tests.e2e.demo down; else $(CLUSTER) down; fi

test: packages prometheus browser venv gateway lint docs parts images ## everything: lint, types, contracts, all tests
	@$(UNIT); unit=$$?; $(REAL); real=$$?; $(ON_CLUSTERS) && exit $$((unit | real))

lint: venv ## ruff (lint and format), mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: venv ## the unit tests alone: no cluster, no root
	@$(UNIT)

real-test: packages prometheus browser venv gateway ## the tests with a real browser, Prometheus and model alone
	@$(REAL)

cluster-test: packages venv parts images ## the tests on a real cluster alone
	@$(ON_CLUSTERS)

cluster-up: packages ## start the local cluster alone
	@$(CLUSTER) up

cluster-down: ## stop the local cluster and remove it
	@$(CLUSTER) down

release: packages venv ## a release's files in dist/: wheel, images, charts, bills of materials, notes, sums (SNAPSHOT=1: to try)
	@$(CLUSTER) build helm && $(BIN)/python -m release $(if $(SNAPSHOT),--snapshot)

bundle: packages venv ## the release and its air-gap bundle (MODELS="NAME=SOURCE ...": with models, in DTYPE=int4)
	@$(CLUSTER) build helm && $(BIN)/python -m release --bundle $(if $(SNAPSHOT),--snapshot) \
	  $(if $(DTYPE),--dtype $(DTYPE)) $(foreach model,$(MODELS),--model $(model))

images: packages clients ## build the images (add REGISTRY=host:port to push them)
	@$(BIN)/python -m images.build $(if $(REGISTRY),--registry $(REGISTRY) --push)

venv: ## .venv with everything that the tests need, and the CPU kernels
	@$(PREPARE) venv full

native: venv ## build the CPU kernels (C++) again after a change

format: venv ## format and sort imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: ## pin every Python package anew (constraints.txt)
	@$(PREPARE) constraints

manifests: ## write manifests/, the charts' README.md and schemas, and the table of fields again from their sources
	$(BIN)/python -m manifests.generate

golden: ## write again what the tests expect the charts to render
	$(BIN)/python -m tests.operator.chart.golden

dashboards: ## write Grafana's dashboards and the tables of docs/metrics.md again
	$(BIN)/python -m dashboards.generate

pictures: browser venv ## take the pictures of docs/web-page.md again
	@$(BIN)/python -m tests.server.page.pictures

docs: venv ## the documentation as a site, in build/site; fails where a link leads nowhere
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench-decode: venv ## tokens/s of one sequence beside the memory-bandwidth bound, each format (MODEL=)
	@for dtype in bf16 int8 int4; do $(BIN)/strata bench decode $(MODEL) --dtype $$dtype || exit 1; done

bench-gpu: venv ## every case of a card in one call, 9 minutes on an H200 with 16 cores: writes docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks

bench-perplexity: venv ## perplexity of each format on a fixed text (MODEL=, TEXT=)
	@for dtype in bf16 int8 int4; do $(BIN)/strata bench perplexity $(MODEL) --dtype $$dtype --text $(TEXT) || exit 1; done

equal: venv ## the same answers wherever experts lie, against all in VRAM (EQUAL="--placements cpu ...", or --help)
	@$(BIN)/python -m tests.stress.placements $(EQUAL)

audit: venv ## known faults of the pinned packages, from an advisory service (AUDIT="-s osv"); needs the network
	@$(BIN)/python -m tests.audit $(AUDIT)

fuzz: venv ## random requests, answers, templates and checkpoints for SECONDS= (600): none may end in a crash
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) $(FUZZ)

sanitize: venv ## compute-sanitizer over the tests of the GPU's kernels (needs a card and the CUDA toolkit)
	@$(BIN)/python -m tests.stress.sanitize $(SANITIZE)

soak: venv ## 10,000 mixed requests with clients that leave: nothing may be left over (SOAK="--minutes 30": memory too)
	@$(BIN)/python -m tests.stress.soak --model $(MODEL) $(SOAK)

bench-operator: packages venv parts ## 1,000 models on 500 pretend nodes: latency, calls, CPU, memory beside the goals; 10 min
	@$(BIN)/python -m tests.scale.bench --write docs/benchmarks-operator.md

chaos: packages venv parts ## operator, agent, API server, kubelet killed at random for SECONDS= (900), then all must converge
	@$(BIN)/python -m tests.stress.chaos --seconds $(or $(SECONDS),900)

clean: ## remove what was built in the checkout
	rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -f engine/strata/native/libstrata.so
	find engine operator tests images -name __pycache__ -type d -prune -exec rm -rf {} +

clean-cache: demo-down ## remove the caches outside the checkout too: cluster parts, stores, images
	rm -rf $(CACHE)
	$(PYTHON) -m images.build --remove

packages:
	@$(PREPARE) packages

prometheus:
	@$(PREPARE) prometheus

browser:
	@$(PREPARE) browser

gateway:
	@$(PREPARE) gateway

clients:
	@$(PREPARE) venv light

.PHONY: parts
parts: packages
	@$(CLUSTER) build && $(CLUSTER) build kwok gateway-api inference-extension keda prometheus-adapter kube-router
