# Python 3.11 and make are all it takes: every target installs what it needs into .venv, once.
#   PYTHON=python3.12   another interpreter
#   CONSTRAINTS=        no pinned torch: on a machine with a GPU, where the default build is the right one
#   ARGS="-k wire -x"   more arguments for pytest, or for the demo
PYTHON ?= $(shell for python in python3.11 python3; do $$python -c '' 2>/dev/null && echo $$python && break; done)
CONSTRAINTS ?= constraints/cpu.txt
ARGS ?=

INSTALLED := .venv/.installed
PLAIN := .venv-plain/.installed

.PHONY: help check test slow demo clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

check: $(INSTALLED) ## formatting, lint, types and who may import whom
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@contracts=$$(.venv/bin/lint-imports) && echo "Import contracts: all kept" || { echo "$$contracts"; exit 1; }

# A file's tests stay in one process, since they share what is costly to make.
test: $(INSTALLED) ## every test, two at a time, each on one thread, so that claims about bits hold
	@OMP_NUM_THREADS=1 .venv/bin/pytest -n 2 --dist loadfile $(ARGS)

# Real deployments and a simulation; then the command line without Flower, whose pins hold older versions of its libraries.
slow: $(INSTALLED) $(PLAIN) ## what takes minutes: Flower's processes started, killed and resumed; an installation without it
	@OMP_NUM_THREADS=1 .venv/bin/pytest -n 2 --dist loadfile tests/slow $(ARGS)
	@OMP_NUM_THREADS=1 .venv-plain/bin/pytest -n 2 --dist loadfile tests/cli tests/flower $(ARGS)

demo: $(INSTALLED) ## a real run, small enough for a laptop
	@.venv/bin/python demo/demo.py $(ARGS)

clean: ## remove .venv, builds and caches; runs/ stays
	@rm -rf .venv .venv-plain build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the folder it was made in: a copied or moved .venv still points at the old one, and is made anew.
define stale
ifneq ($(shell cat $(1) 2>/dev/null),$(CURDIR))
.PHONY: $(1)
endif
endef
$(foreach stamp,$(INSTALLED) $(PLAIN),$(eval $(call stale,$(stamp))))

$(INSTALLED): EXTRA := dev
$(PLAIN): EXTRA := test
$(INSTALLED) $(PLAIN): pyproject.toml $(CONSTRAINTS)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: cotune needs Python 3.11 or newer, got '$(PYTHON)' · make PYTHON=... names another" >&2; exit 1; }
	@echo "installing into $(@D) (about 2 minutes the first time)…"
	@[ ! -f $@ ] || [ "$$(cat $@)" = "$(CURDIR)" ] || rm -rf $(@D)
	@"$(PYTHON)" -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check -e '.[$(EXTRA)]' $(addprefix -c ,$(CONSTRAINTS))
	@echo "$(CURDIR)" > $@
