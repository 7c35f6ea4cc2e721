PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
DIST := dist
VIV := @vivjs/loaders@0.21 @xmldom/xmldom@0.9

# Jobs are many processes: each would compile the packages anew, 0.9 of 3.9 CPU-s of a dry run.
unexport PYTHONDONTWRITEBYTECODE

# Environments are installed beside lint. Of their 1.9 GB of Python most is never imported: it is
# compiled when it is.
MAKEFLAGS += --jobs=2
export PIP_NO_COMPILE = 1

.PHONY: demo test test-slurm on-slurm packages check lint dist docs clean

demo: $(VENV)/.installed
	$(BIN)/tilewright demo --output $(DEMO)
	@echo "processing it: a minute or two"
	$(BIN)/snakemake registration qc --configfile config/demo.yaml --quiet rules reason host
	@echo
	@echo "image:  $(DEMO)/results/tonsil/registration/tonsil.ome.tif"
	@echo "report: $(DEMO)/results/report.html"
	@echo "which markers can be trusted: $(DEMO)/results/trusted_markers.csv"

# The cluster's tests wait most of the time: a third worker keeps two cores busy (a fourth adds 2 min).
# LONG=1 adds what takes minutes: faults of whole runs, wheels in an environment of their own,
# the libraries that read our images.
test: $(VENV)/.installed-test packages lint \
		$(if $(LONG),$(VENV)/.installed-consumers $(VENV)/.installed-dist)
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder --durations 40 \
		$(if $(LONG),,-m "not long")

# What is marked slurm, on another release of Slurm in a root folder of its own: trixie has 24.11,
# forky 26.05, bookworm 22.05. What is not committed is not tested.
RELEASE ?= trixie
test-slurm:
	MAKEFLAGS= tests/slurm_root $(RELEASE) build/slurm-$(RELEASE) make on-slurm LONG=$(LONG)

on-slurm: $(VENV)/.installed-test $(if $(LONG),$(VENV)/.installed-dist)
	TILEWRIGHT_NEEDS_SLURM=1 $(BIN)/python -m pytest --durations 20 -m "slurm$(if $(LONG),, and not long)"

packages:
	tests/install_packages Slurm slurm-wlm slurmdbd mariadb-server munge

# For the inner loop: no Snakemake run, no cluster.
check: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not workflow and not slurm and not slow and not long"

lint: $(VENV)/.installed-test $(if $(LONG),$(VENV)/.installed-consumers)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check workflow src/tilewright/init/files/Snakefile
	$(BIN)/mkdocs build --strict
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

# Both distributions, as they are published.
dist: $(VENV)/.installed-dist
	rm -rf $(DIST)
	$(BIN)/python -m build --outdir $(DIST) scheduler-plugin
	$(BIN)/python -m build --outdir $(DIST) .
	$(BIN)/twine check --strict $(DIST)/*
	$(BIN)/check-wheel-contents $(DIST)/*.whl

# Tables that the code knows are written into the pages; the site is build/site/index.html.
docs: $(VENV)/.installed-test
	$(BIN)/python -m docs.generate
	$(BIN)/mkdocs build --strict

$(VENV)/.installed: pyproject.toml scheduler-plugin/pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "tilewright needs Python 3.11 or newer; run make PYTHON=python3.12 ..."'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ./scheduler-plugin --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ./scheduler-plugin --editable '.[test]'
	touch $@

# One pip at a time in an environment.
$(VENV)/.installed-dist: $(VENV)/.installed $(if $(LONG),$(VENV)/.installed-test)
	$(BIN)/python -m pip install --quiet --editable ./scheduler-plugin --editable '.[dist]'
	touch $@

# Readers of the images; Viv is for Node.js. Their tests skip where they are missing.
$(VENV)/.installed-consumers: $(VENV)/.installed-test $(VENV)/.installed-dist
	$(BIN)/python -m pip install --quiet --editable ./scheduler-plugin --editable '.[test,consumers]'
	-npm install --silent --no-audit --no-fund --prefix $(VENV)/consumers $(VIV)
	touch $@

clean:
	rm -rf $(DEMO) .snakemake
