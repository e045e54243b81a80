# Every target does its own set-up, so that each works first on a fresh machine. The logic is in tools/.
SHELL := /bin/bash
PY := .venv/bin/python
RUN_ARGS ?= study run quick
TEST_ARGS ?=
SOAK_MINUTES ?= 30

.DEFAULT_GOAL := help
.PHONY: help run test setup lint docs lock soak clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 10

run: ## set up the runtime and run the study `quick` on this machine (RUN_ARGS="...")
	@tools/setup_env.sh runtime
	@.venv/bin/scalewright $(RUN_ARGS)

test: ## set up everything and run every tier (TEST_ARGS="--tier unit")
	@tools/setup_env.sh dev
	@$(PY) tools/run_tiers.py $(TEST_ARGS)

setup: ## set up the development environment in .venv
	@tools/setup_env.sh dev

lint: ## formatting, lint, types and import rules
	@tools/setup_env.sh dev
	@$(PY) tools/run_tiers.py --tier static

docs: ## build the documentation into site/
	@tools/setup_env.sh dev
	@.venv/bin/mkdocs build --strict --quiet

lock: ## resolve the dependencies anew into requirements.lock
	@tools/lock.sh

soak: ## read 1,000,000 mutated inputs of all kinds, ask 200,000 random questions whether the rules of sense hold, run 10,000 hostile rewards, kill roles 200 times and training 1,000 times, inject every fault, then run the tiers search, unit, ranks and kills again and again (SOAK_MINUTES=30)
	@tools/setup_env.sh dev
	@$(PY) tests/fuzz/fuzz_soak.py --inputs 1000000 --out runs/fuzz-$$(date +%Y%m%dT%H%M%S)
	@$(PY) tests/sense/sense_soak.py --questions 200000 --keep runs/sense-$$(date +%Y%m%dT%H%M%S).jsonl
	@$(PY) tests/data/sandbox/soak.py 10000
	@$(PY) tests/killed_roles.py 200
	@SCALEWRIGHT_TEST_KILLS=200 $(PY) -m pytest tests/kills/test_hybrid_kills.py -k at_random
	@SCALEWRIGHT_TEST_KILLS=20 $(PY) -m pytest tests/kills/test_data_kills.py -k again_and_again
	@$(PY) tests/kills/checkpoint_kills.py --kills 1000 --out runs/kills-$$(date +%Y%m%dT%H%M%S)
	@$(PY) benchmarks/fault_suite.py --folder runs/faults-$$(date +%Y%m%dT%H%M%S)
	@$(PY) tools/run_tiers.py --tier search --minutes $(SOAK_MINUTES)
	@$(PY) tools/run_tiers.py --tier unit --tier ranks --tier kills --minutes $(SOAK_MINUTES)

clean: ## remove the environment, caches and build outputs
	@rm -rf .venv site dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
