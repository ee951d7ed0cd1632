# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
# What was done once is remembered in .venv/.stamps, so that a second call is quick.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# --no-compile: Python compiles each module when it is first imported, and many never are.
PIP    := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --no-compile
PYTEST := $(BIN)/python -m pytest

# One thread a process: tests start many, and they share the cores.
export OMP_NUM_THREADS ?= 1
# Without compiled files each of hundreds of processes compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo down install wheel release prepare dev test test-nightly test-unit faults gpu gpu-tests simulate coverage \
	constraints locks check check-js check-supply soak format mutants bench docs clean

help:  ## What there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMPS)/install  ## Install, start the platform, run eight learning rates, show the ranked table
	@$(BIN)/lehr demo

down:  ## Stop everything that `make demo` or `lehr up` started, and only that
	@if [ -x $(BIN)/lehr ]; then $(BIN)/lehr down; else echo "Nothing is installed, so nothing runs."; fi

install: $(STAMPS)/install  ## Only install
	@echo 'Installed. Next: source $(BIN)/activate, then lehr demo, or lehr up'
wheel: $(STAMPS)/venv  ## Build dist/lehr-VERSION-py3-none-any.whl, which installs without this clone
	rm -rf dist && $(PIP) wheel --quiet --no-deps --wheel-dir dist .
	@echo "Built. Next, in any environment: pip install '$$(echo $(CURDIR)/dist/lehr-*.whl)[server]' && lehr demo"
release: wheel  ## The wheel with its checksum, and the images of deploy/ (needs Docker and a registry)
	cd dist && sha256sum lehr-*.whl > SHA256SUMS
	@docker info >/dev/null 2>&1 || { echo "No Docker daemon: dist/ is complete, the images are not built."; exit 1; }
	version=$$(ls dist/*.whl | cut -d- -f2) && for image in server trainer; do \
		docker build -f deploy/$$image.Dockerfile -t lehr-$$image:$$version . || exit; done
prepare: $(STAMPS)/dev $(STAMPS)/node $(STAMPS)/chromium  ## Install all that `check` and `test` need
dev: $(STAMPS)/dev  ## Install what working on Lehr needs

# A browser, Ray and servers of their own make tests wait, so there are more workers than cores.
# ARGS: only these tests, in one process.
WORKERS = --dist loadgroup --durations 30
EVERY_CHANGE = -m "not nightly and not faults and not gpu"
test: $(STAMPS)/dev $(STAMPS)/chromium  ## Install what the tests need, and run those of every change
	$(PYTEST) $(EVERY_CHANGE) $(or $(ARGS),-n 4 $(WORKERS) tests)

test-nightly: $(STAMPS)/dev $(STAMPS)/chromium  ## What is too slow for every change; random examples
	$(PYTEST) -m "(nightly or hypothesis) and not faults and not gpu" --hypothesis-profile nightly \
		--timeout 3600 $(or $(ARGS),-n 4 $(WORKERS) tests)

# Each fault test gives its processes some time only, so not more at once.
faults: $(STAMPS)/dev  ## The tests that kill processes, nodes and networks on purpose
	$(PYTEST) -m "faults and not gpu" $(or $(ARGS),-n 2 $(WORKERS) tests)

gpu: $(STAMPS)/dev  ## On a GPU machine: what 15 minutes can answer, then tests, bench, report; MINUTES=15, FRESH=1
	$(BIN)/python tests/gpu/session.py $(if $(FRESH),--fresh) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

gpu-tests: $(STAMPS)/dev  ## Only the tests that need a GPU
	$(PYTEST) -m gpu $(or $(ARGS),tests/gpu)

simulate: $(STAMPS)/dev  ## The control plane in virtual time, with faults; SEEDS=n, FIRST=, HOURS=, GPUS=
	PYTHONPATH=tests PYTHONHASHSEED=0 $(BIN)/python -m simulation --seeds $(or $(SEEDS),10) \
		--first $(or $(FIRST),1) $(if $(HOURS),--hours $(HOURS)) $(if $(GPUS),--gpus $(GPUS)) $(ARGS)

test-unit: $(STAMPS)/dev  ## The fast tests only
	$(PYTEST) $(EVERY_CHANGE) -n 2 --dist loadgroup tests/platform tests/trainer tests/api --ignore tests/trainer/process $(ARGS)

check: $(STAMPS)/dev check-js  ## Linters, types, layers, size; types, lint and unit tests of the JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q -s tests/repository/test_file_sizes.py

coverage: $(STAMPS)/dev $(STAMPS)/chromium  ## Which lines the tests of every change run, in this process and its workers
	$(PYTEST) $(EVERY_CHANGE) -n 4 $(WORKERS) --cov --cov-report term:skip-covered --cov-report html $(or $(ARGS),tests)

# Node comes with the `dev` extra; the lock file says what comes from npm.
JS     := tests/javascript
JS_BIN := PATH="$(CURDIR)/$(BIN):$$PATH" $(JS)/node_modules/.bin
check-js: $(STAMPS)/node  ## The JavaScript alone
	$(JS_BIN)/tsc --project $(JS)
	$(JS_BIN)/tsc --project $(JS)/tsconfig.tests.json
	$(JS_BIN)/eslint --config $(JS)/eslint.config.js api/lehr_api/dashboard/static/js $(JS)
	$(BIN)/node --test --test-isolation=none --test-reporter=dot '$(JS)/*.test.js'

format: $(STAMPS)/dev  ## Put the code in the agreed form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutants: $(STAMPS)/dev  ## Change single expressions and see whether the tests notice; BASE=main, SAMPLE=, SEED=
	$(BIN)/python tests/mutants.py $(if $(BASE),--base $(BASE)) \
		$(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(STAMPS)/dev  ## Measure: makespan beside Ray Tune's, trainer beside bare PyTorch, ingestion, ...
	@set -e; for bench in tests/bench/*.py; do echo "== $$bench"; $(BIN)/python $$bench; done

docs: $(STAMPS)/dev  ## Renew the reference pages and the goldens of the command line
	$(BIN)/python docs/generate
	LEHR_RENEW_GOLDENS=1 $(PYTEST) -q tests/platform/faces/cli/test_goldens.py \
		tests/platform/faces/cli/test_error_output.py tests/platform/faces/cli/test_live.py

clean:  ## Remove the virtual environment and caches; runs and data in LEHR_HOME stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis tests/javascript/node_modules

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Lehr needs Python 3.11 or newer; name it: make demo PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# torch first and by itself: it is what takes long, and a later failure does not undo it.
# TORCH_INDEX names another package index, for a CPU-only or another CUDA build.
$(STAMPS)/torch: $(STAMPS)/venv
	$(INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	@touch $@

# The versions that were tested together: with them, no installer searches among releases.
CONSTRAINTS = deploy/constraints.txt

# pip takes half a second of processor time for each of 240 distributions, uv a tenth of it. uv reads
# none of pip's settings but the index that it is given here. Where it fails, pip installs or explains.
$(STAMPS)/uv: $(STAMPS)/torch
	$(INSTALL) -c $(CONSTRAINTS) uv
	@touch $@
UV_INSTALL = index="$${PIP_INDEX_URL:-$$($(PIP) config get global.index-url 2>/dev/null)}"; \
	$(BIN)/uv pip install --python $(BIN)/python $${index:+--default-index "$$index"} -c $(CONSTRAINTS)

$(STAMPS)/install: $(STAMPS)/uv pyproject.toml $(CONSTRAINTS)
	@$(UV_INSTALL) -e '.[server,trainer,notebook]' || $(INSTALL) -c $(CONSTRAINTS) -e '.[server,trainer,notebook]'
	@touch $@

# All that `install` does, and more.
$(STAMPS)/dev: $(STAMPS)/uv pyproject.toml $(CONSTRAINTS)
	@$(UV_INSTALL) -e '.[dev]' || $(INSTALL) -c $(CONSTRAINTS) -e '.[dev]'
	@touch $(STAMPS)/install $@

constraints: $(STAMPS)/torch  ## Renew the tested versions: install the newest, and write down what came
	$(PIP) install --upgrade --upgrade-strategy eager -e '.[dev]' torch==2.13.0
	head -2 $(CONSTRAINTS) > $(STAMPS)/constraints
	$(PIP) freeze --exclude-editable --exclude torch \
		| grep -E '^[A-Za-z0-9._-]+==' | grep -vE '^(nvidia|cuda|triton)' >> $(STAMPS)/constraints
	mv $(STAMPS)/constraints $(CONSTRAINTS)
	$(MAKE) locks

# What the images install: every package in one version, with the digests of its files.
UV_LOCK = $(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	--custom-compile-command "make locks" --no-emit-index-url --no-annotate --generate-hashes -c $(CONSTRAINTS)
locks: $(STAMPS)/dev  ## Renew the locks of the images from the tested versions
	$(UV_LOCK) --extra server pyproject.toml -o deploy/server.lock
	$(UV_LOCK) --extra server --extra trainer --extra gpu pyproject.toml -o deploy/trainer.lock
	echo hatchling | $(UV_LOCK) - -o deploy/build.lock

# The lock of the trainer has all of the server's. pycountry (LGPL) is used unchanged, as a library of its
# own; torchao (BSD) states no licence. NVIDIA's libraries come with a GPU only, under torch's terms.
LICENCES = MIT;Apache;BSD;ISC;MPL-2.0;Mozilla;Python;PSF-2.0;0BSD;Zlib
LOCKED = $$(grep -oE '^[a-z0-9._-]+==' deploy/trainer.lock | tr -d =)
check-supply: $(STAMPS)/dev  ## Images: bills of materials, licences, known vulnerabilities (asks PyPI)
	mkdir -p supply-report && for image in server trainer; do $(BIN)/uv tool run --from cyclonedx-bom==7.5.0 \
		cyclonedx-py requirements deploy/$$image.lock --output-file supply-report/sbom-$$image.json || exit; done
	$(BIN)/uv tool run pip-licenses==5.5.0 --python $(BIN)/python --packages $(LOCKED) --partial-match \
		--ignore-packages pycountry torchao --allow-only '$(LICENCES)' > supply-report/licences.txt
	$(BIN)/uv tool run pip-audit==2.10.1 -r deploy/trainer.lock --require-hashes --disable-pip --strict

soak: $(STAMPS)/dev  ## Short runs under kills for HOURS, and a report of what grew; FOLDER=, SEED=
	nice -n 10 $(BIN)/python tests/soak.py --hours $(or $(HOURS),1) \
		$(if $(FOLDER),--folder $(FOLDER)) $(if $(SEED),--seed $(SEED)) $(ARGS)

$(STAMPS)/node: $(STAMPS)/dev tests/javascript/package-lock.json
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --prefix tests/javascript
	@touch $@

# Playwright drives the system's Chromium; the headless shell alone needs less of the machine. As
# root we can fetch it; otherwise we say how.
CHROMIUMS = chromium-headless-shell chromium chromium-browser google-chrome
$(STAMPS)/chromium: | $(STAMPS)/venv
	@for one in $(CHROMIUMS); do command -v $$one >/dev/null && found=1; done; \
	if [ -n "$$found" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update && for one in $(CHROMIUMS); do \
			DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$one fonts-dejavu-core && break; \
		done; \
	else echo "The browser tests need Chromium: sudo apt-get install chromium"; exit 1; fi
	@touch $@
