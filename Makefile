PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo

.PHONY: demo test lint clean

demo: $(VENV)/.installed
	$(BIN)/tilewright demo --output $(DEMO)
	$(BIN)/snakemake registration qc --configfile config/demo.yaml
	@echo
	@echo "image:  $(DEMO)/results/tonsil/registration/tonsil.ome.tif"
	@echo "report: $(DEMO)/results/report.html"

# The cluster's tests wait most of the time: they run beside the others.
test: $(VENV)/.installed-test lint
	tests/install_slurm
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check workflow

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "tilewright needs Python 3.11 or newer; run make PYTHON=python3.12 ..."'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(DEMO) .snakemake
