# Two commands are enough on a fresh machine: `make run` and `make test`.
# Each sets up .venv on first use and leaves it alone until pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help run test sim loop learn compat chaos soak bench clean

help:
	@echo "make run                  set up $(VENV) and run examples/evolution.py"
	@echo "make test                 set up $(VENV), then lint, check types and run the tests"
	@echo "make test ARGS='-k wait'  the same, with arguments for pytest"
	@echo "make sim                  thousands of simulated failures of the control store and the control service;"
	@echo "                          every known bug must be found"
	@echo "make loop                 train a policy and serve it at the same time: a minute; draws its curve"
	@echo "make learn                train every algorithm of skate.rl to its score: minutes, not seconds"
	@echo "make compat               run libraries that were written for Ray, in an environment of their own"
	@echo "make chaos                load on what is updated and killed: serving, the control store; make soak: ten minutes of load"
	@echo "make bench                compare with other systems, each in an environment of its own"
	@echo "make bench PEERS=ray      compare with the systems named"
	@echo "make bench SUITE=rl       compare skate.rl with other libraries of reinforcement learning"
	@echo "make bench SUITE=train    compare skate.train, skate.collective and trials with others"
	@echo "make bench SUITE=serve    compare skate.serve with Ray Serve, FastAPI, LitServe and bare uvicorn"
	@echo "make bench SUITE=control  measure the control store: failures, writes a second, recovery, memory"
	@echo "make bench SUITE=train RESUME=bench/results/FILE.json   go on with a result; SMOKE=1: tiny sizes, one run"
	@echo "make clean                remove $(VENV) and everything else that was generated"
	@echo
	@echo "PYTHON=/path/to/python3 chooses the interpreter (3.10 or later) that $(VENV) is made with."

run: $(VENV)/.ready-examples
	$(BIN)/python examples/evolution.py $(ARGS)

# Hundreds of tests start processes of their own: without compiled bytecode that alone takes minutes. Many wait for
# something most of the time, so there is one process more than the two cores that this is made for.
test: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

# Histories by seed, and the simulations' own test: each bug of tests/sim/*mutants.py is found within 2,000 seeds.
SIM_SEEDS ?= 5000
sim: $(VENV)/.ready-test
	SKATE_SIM_SEEDS=$(SIM_SEEDS) $(BIN)/python -m pytest tests/sim -n 2 $(ARGS)
	$(BIN)/python tests/sim/hunt.py all

loop: $(VENV)/.ready-loop
	$(BIN)/python examples/rl/train_and_serve.py $(ARGS)

# Every algorithm learns, to a score. tests/learn is left alone by `make test`.
learn: $(VENV)/.ready-learn
	SKATE_LEARN=1 $(BIN)/python -m pytest tests/learn --timeout 1800 -o faulthandler_timeout=1790 $(ARGS)

# Libraries that were written for Ray, unchanged. torch first: a package that asks for any torch brings gigabytes.
compat: $(VENV)-compat/.ready
	SKATE_COMPAT=1 $(VENV)-compat/bin/python -m pytest tests/compat $(ARGS)

# Half a minute of load on an application that is updated three times, and whose replica is killed; then two minutes of
# faults by chance for a control store on Redis and on Valkey servers.
chaos: $(VENV)/.ready-test
	SKATE_FIRE_S=30 SKATE_FIRE_UPDATES=3 $(BIN)/python -m pytest tests/integration/test_serve_under_fire.py $(ARGS)
	SKATE_CHAOS_S=120 $(BIN)/python -m pytest tests/integration/test_redis_chaos.py -n 2 --timeout 400 \
	  -o faulthandler_timeout=390 $(ARGS)

# Ten minutes of load: nothing grows.
soak: $(VENV)/.ready-test
	SKATE_SOAK_S=600 $(BIN)/python -m pytest tests/integration/test_serve_under_fire.py -k long \
	  -o faulthandler_timeout=890 $(ARGS)

bench:
	$(PYTHON) bench/$(if $(SUITE),$(SUITE)/)run.py $(if $(PEERS),--peers $(PEERS)) $(if $(ROWS),--rows $(ROWS)) \
	  $(if $(RESUME),--resume $(RESUME)) $(if $(SMOKE),--smoke)

clean:
	rm -rf $(VENV) $(VENV)-compat build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/.envs evolution.png train_and_serve.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per extra: written only after pip succeeded, so that an interrupted set-up is taken up again.
$(VENV)/.ready-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# torch before all that asks for it: without a pin it brings gigabytes on some platforms. `make run` needs none.
$(VENV)/.ready-test $(VENV)/.ready-learn $(VENV)/.ready-loop: $(VENV)/.ready-torch
$(VENV)/.ready-torch: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.*'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "Skate needs Python 3.10 or later, and '$(PYTHON)' is not: `$(PYTHON) --version 2>&1`." >&2; \
	  echo "Name another interpreter: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make a virtual environment: its venv package is not installed." >&2; \
	  echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)-compat/.ready: pyproject.toml tests/compat/requirements.txt tests/compat/requirements-without-ray.txt
	$(PYTHON) -m venv --clear $(VENV)-compat
	$(VENV)-compat/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.*'
	$(VENV)-compat/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' -r tests/compat/requirements.txt
	$(VENV)-compat/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/compat/requirements-without-ray.txt
	@touch $@
