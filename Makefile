PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
VIV := @vivjs/loaders@0.21 @xmldom/xmldom@0.9
VITESSCE_NEEDS := aiofiles generate-tiff-offsets starlette ujson

.PHONY: demo test check lint consumers clean

demo: $(VENV)/.installed
	$(BIN)/tilewright demo --output $(DEMO)
	$(BIN)/snakemake registration qc --configfile config/demo.yaml --quiet rules progress reason host
	@echo
	@echo "image:  $(DEMO)/results/tonsil/registration/tonsil.ome.tif"
	@echo "report: $(DEMO)/results/report.html"
	@echo "zoom:   $(BIN)/pip install -e '.[view]' && $(BIN)/tilewright view $(DEMO)/results"

# The cluster's tests wait most of the time: a third worker keeps two cores busy.
# LONG=1 adds the faults that take minutes (killed coordinators, full disks).
test: $(VENV)/.installed-test lint
	tests/install_packages Slurm slurm-wlm slurmdbd mariadb-server munge
	tests/install_packages viewer chromium
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder --durations 40 \
		$(if $(LONG),,-m "not long")

# For the inner loop: no Snakemake run, no cluster.
check: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not workflow and not slurm and not slow"

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
	-npm install --silent --no-audit --no-fund --prefix $(VENV)/consumers $(VIV)
	touch $@

# palom and Vitessce do not install beside tilewright, since they want zarr 2; palom is compiled
# unless PYTHON is 3.10.
consumers:
	$(PYTHON) -m venv $(VENV)/consumers
	$(VENV)/consumers/bin/pip install --quiet palom vitessce $(VITESSCE_NEEDS)

clean:
	rm -rf $(DEMO) .snakemake
