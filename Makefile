# Two commands are enough on a fresh machine: `make demo` and `make test`. Both set everything up first.
# `make help` prints every target that has a comment after `##`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Images for containers often forbid bytecode. Here each process of each test would compile the same modules again, a third
# of what it takes to start one.
export PYTHONDONTWRITEBYTECODE :=
DOCS   := $(VENV)/.installed-docs

.PHONY: install demo test soak odd-places search checks lint types imports pytest pytest-pure pytest-real pytest-alone computing bench clean
# Rooms that compute or speak, and import no torch: what can be tried with a Python for which there is no torch.
WITHOUT_TORCH := $(addprefix tests/unit/,analyzer controller core engines evidence fabric goodput health journal knowledge \
	linux model preflight probes report simulate web wire) tests/scenarios tests/golden tests/property/test_core_flow_histories.py

# What some tests need, and skip without: a real Slurm, a browser, Prometheus.
DEBIAN := slurmctld slurmd slurm-client munge chromium prometheus iproute2

.PHONY: gpu gpu-prefetch debian debian13 lowest highest versions audit other-python help format test-quick quick-1 quick-2 quick-3 one docs

install: $(STAMP)  ## create .venv with the package and its development tools

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	touch $(STAMP)

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	touch $(DOCS)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

debian:  ## install the Debian packages that some tests skip without (root): Slurm, Chromium, Prometheus
	@dpkg -s $(DEBIAN) >/dev/null 2>&1 \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(DEBIAN) >/dev/null; } \
	  || echo "not all of these could be installed, and the tests that need them skip: $(DEBIAN)"

demo: install  ## train a small model here, kill parts of it, compare the result
	$(BIN)/everstep demo

test: install lint  ## lint, types, import contract and all tests but the soak tests
	@$(MAKE) --no-print-directory -j2 pytest-real computing
	@$(MAKE) --no-print-directory pytest-alone

checks: install  ## lint, types and import contract, beside each other
	@$(MAKE) --no-print-directory --output-sync=target -j2 types imports lint

lint: install  ## check style and formatting (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install  ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: install  ## check types (mypy, strict)
	$(BIN)/mypy

imports: install  ## check which package may import which (import-linter)
	$(BIN)/lint-imports

# Three processes with rooms of their own, as each would otherwise collect the tests of all. What one says comes when it
# has ended.
QUICK_1 := analyzer evidence fabric knowledge report
QUICK_2 := agent controller launcher worker
QUICK_3 := $(filter-out $(QUICK_1) $(QUICK_2) __pycache__,$(notdir $(patsubst %/,%,$(wildcard tests/unit/*/))))
test-quick: install  ## unit tests but the slow ones; stop at the first failure
	@$(MAKE) --no-print-directory -j3 --output-sync=target quick-1 quick-2 quick-3

quick-1 quick-2 quick-3: quick-%:
	@$(BIN)/pytest $(addprefix tests/unit/,$(QUICK_$*)) -q -x -m "not soak and not slow"

one: install  ## run one test: make one T=tests/unit/pages/test_codes.py
	@test -n "$(T)" || { echo "usage: make one T=tests/unit/pages/test_codes.py" >&2; exit 2; }
	$(BIN)/pytest $(T)

LOWEST := build/lowest
HIGHEST := build/highest
MET_TESTS := tests/unit/checkpoint/test_persist_form.py tests/unit/journal/test_journal.py tests/unit/knowledge/test_knowledge_matching.py \
	tests/unit/web/test_web_visitors.py tests/property/test_foreign_readers.py \
	tests/integration/control/test_link_hostile.py tests/integration/control/test_controller_strangers.py tests/integration/control/test_run_verbs.py
DEPENDENCIES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")

versions: lowest highest  ## the tests that meet other libraries, with their lowest and their highest versions

lowest: install  ## ... with the lowest versions that pyproject.toml allows
	rm -rf $(LOWEST)
	$(BIN)/python -c '$(DEPENDENCIES)' | sed 's/>=/==/' \
	  | xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(LOWEST)
	PYTHONPATH=$(LOWEST) $(BIN)/pytest -W "ignore::pytest.PytestUnraisableExceptionWarning" $(MET_TESTS)

highest: install  ## ... with the highest versions that the package index has
	rm -rf $(HIGHEST)
	$(BIN)/python -c '$(DEPENDENCIES)' \
	  | xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(HIGHEST)
	$(BIN)/python -m pip list --disable-pip-version-check --path $(HIGHEST)
	PYTHONPATH=$(HIGHEST) $(BIN)/pytest $(MET_TESTS)

audit: install  ## known vulnerabilities of what is installed (pip-audit); skipped where the index serves no advisories
	PYTHON="$(BIN)/python" bash .ci/audit

other-python:  ## the tests that need no torch, with another Python: make other-python PYTHON=python3.13
	$(PYTHON) -m venv --clear build/other-python
	build/other-python/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	build/other-python/bin/python -c 'import tomllib; \
	  dev = tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"]; \
	  print(*(d for d in dev if d.startswith(("hypothesis", "networkx", "numpy", "nvidia", "pytest", "pyyaml")) and "lightning" not in d))' \
	  | xargs build/other-python/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	build/other-python/bin/python --version
	build/other-python/bin/python -m pytest -n 2 $(wildcard $(WITHOUT_TORCH)) -p no:cacheprovider

debian13:  ## the same with Python 3.13, in a Debian 13 that it makes in build/debian13 (root, debootstrap)
	.ci/debian13

# Beside each other: the tests with processes wait for more than half of their time, so three of them share two cores,
# and what only computes gets what is left. What it prints comes when it has ended.
pytest: install  ## all tests but the soak tests
	@$(MAKE) --no-print-directory -j2 pytest-real pytest-pure
	@$(MAKE) --no-print-directory pytest-alone

computing: install  ## types, import contract, and the tests without the integration tests
	@nice sh -c '$(BIN)/mypy && $(BIN)/lint-imports && $(PURE)' > .computing.log 2>&1; \
	code=$$?; cat .computing.log; rm -f .computing.log; exit $$code

# Nobody waits here for a process: the limit is for what hangs, and a niced lane beside other load is slow.
PURE := $(BIN)/pytest --timeout=900 --ignore=tests/integration
pytest-pure: install  ## tests without the integration tests
	@nice $(PURE) > .pytest-pure.log 2>&1; \
	code=$$?; cat .pytest-pure.log; rm -f .pytest-pure.log; exit $$code

pytest-real: install  ## integration tests: real processes, real kills
	$(BIN)/pytest -n 3 --maxschedchunk=2 -m "not soak and not alone" tests/integration

pytest-alone: install  ## integration tests that measure the machine, one by one
	$(BIN)/pytest -m alone tests/integration

soak: install  ## tests that take minutes each
	$(BIN)/pytest -m soak

odd-places:  ## all tests in three odd places each: names, locale, umask, HOME, TMPDIR (PYTEST="-x tests/unit" for less)
	.ci/odd-places $(PYTEST)

search: install  ## property tests with new random examples
	$(BIN)/pytest tests/property --hypothesis-profile=search

bench: install  ## recovery time beside torchrun and ft_launcher
	$(BIN)/python bench/recovery.py

# An environment of its own: gigabytes, and versions that the tests do not want. DeepSpeed compiles an operator where it is
# used first; torchtitan imports triton, which torch for CPUs does not ask for.
FRAMEWORKS := build/frameworks
FRAMEWORKS_STAMP := $(FRAMEWORKS)/.installed
SHM_OPERATOR := from deepspeed.accelerator import get_accelerator as a; a().create_op_builder("ShareMemCommBuilder").load()

$(FRAMEWORKS_STAMP): bench/framework_programs/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	DS_BUILD_OPS=0 $(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --editable . \
	  --requirement bench/framework_programs/requirements.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps triton==3.9.0
	TORCH_EXTENSIONS_DIR=$(CURDIR)/$(FRAMEWORKS)/torch_extensions $(FRAMEWORKS)/bin/python -c '$(SHM_OPERATOR)'
	touch $@

.PHONY: frameworks frameworks-install
frameworks-install: $(FRAMEWORKS_STAMP)

frameworks: $(FRAMEWORKS_STAMP)  ## DeepSpeed, Megatron-core, torchtitan and others: killed, hung, compared (ONLY="ds-zero1")
	$(FRAMEWORKS)/bin/python bench/frameworks.py $(if $(ONLY),--only $(ONLY),--write)

# Without the project's environment: the machine has no network, and its own Python has the torch that sees the GPU.
GPU_PYTHON := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

gpu:  ## everything that only a GPU can show, in ten minutes and without a network; one line without a GPU
	@$(GPU_PYTHON) bench/gpu.py || [ $$? -eq 3 ]

gpu-prefetch:  ## what `make gpu` needs beyond an installed torch, into build/gpu-wheels (TORCH=2.13.0: torch as well)
	$(GPU_PYTHON) bench/gpu.py --prefetch $(if $(TORCH),--torch $(TORCH))

docs: install $(DOCS)  ## build the documentation in site/; fail on a broken link
	$(BIN)/mkdocs build --strict --quiet

clean:  ## remove .venv, caches and the built documentation
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache site

# Only for who changes src/everstep/probes/ebpf/programs: the compiled objects are part of the repository and the wheel.
EBPF := src/everstep/probes/ebpf/programs
.PHONY: ebpf
ebpf: install  ## compile the eBPF programs again (needs clang, llvm-strip and libbpf's headers)
	for source in $(EBPF)/*.bpf.c; do \
	  clang -g -O2 -Wall -Werror -target bpf -mcpu=v3 -fdebug-prefix-map="$(CURDIR)"=. -c $$source -o $${source%.c}.o && \
	  llvm-strip -g $${source%.c}.o || exit 1; \
	done
	$(BIN)/python -c "from everstep.probes.ebpf import programs; programs.RECORD.write_text(programs.record())"

# The same for NCCL's profiler plug-in: C, no library but libc, glibc 2.17 or later.
PLUGIN := src/everstep/probes/nccl/plugin
.PHONY: nccl-plugin
nccl-plugin: install  ## compile NCCL's profiler plug-in again, for machines like this one (needs cc)
	cc -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -ffile-prefix-map="$(CURDIR)"=. \
	  -Wl,--build-id=none -Wl,-z,relro,-z,now -s -o $(PLUGIN)/everstep_profiler-$$(uname -m).so $(PLUGIN)/everstep_profiler.c
	$(BIN)/python -c "from everstep.probes.nccl import plugin; plugin.RECORD.write_text(plugin.record())"
