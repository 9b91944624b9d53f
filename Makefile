# The two commands of the README. Each makes .venv and installs what it needs.
#   make quickstart   train a small ResNet on images that ship with the project
#   make test         lint and test
#   make clean        remove .venv
# To choose the Python: make PYTHON=/path/to/python3.12 quickstart

VENV := .venv
PYTHON := python3.13 python3.12 python3.11 python3 python
PIP_INSTALL := $(VENV)/bin/python -m pip install --disable-pip-version-check

.PHONY: quickstart test clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

quickstart: $(VENV)/installed
	$(VENV)/bin/python -m bigtransfer.main \
	  --config configs/quickstart.py --workdir runs/quickstart

# Unlike loadfile this ends, with the name of the test, when a worker crashes;
# the marks in tests/e2e keep runs that several tests look at on one worker.
test: $(VENV)/installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python -m pytest -n auto --dist loadgroup

clean:
	rm -rf $(VENV)

$(VENV)/installed: setup.py $(VENV)/bin/python
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/installed-test: setup.py $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[test]'
	touch $(VENV)/installed $@

# A candidate is run, not only looked up: a pyenv shim may stand for nothing.
$(VENV)/bin/python:
	@found=; \
	for python in $(PYTHON); do \
	  version=$$("$$python" -c \
	    'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
	    || continue; \
	  case $$version in \
	    3.11 | 3.12 | 3.13) ;; \
	    *) found="$$found\n  $$python is $$version"; continue ;; \
	  esac; \
	  if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "Making $(VENV) with $$python ($$version)"; \
	    exec "$$python" -m venv --clear $(VENV); \
	  fi; \
	  found="$$found\n  $$python ($$version) lacks the venv module: on Debian"; \
	  found="$$found or Ubuntu, apt-get install python$$version-venv"; \
	done; \
	printf '%b\n' "No Python from 3.11 to 3.13 that can make a virtual" \
	  "environment. Tried: $(PYTHON)$$found" \
	  "To get one: apt-get install python3 python3-venv (Debian 12, Ubuntu" \
	  "24.04 and later), or brew install python@3.13 (macOS). To name one:" \
	  "make PYTHON=/path/to/python3.12 quickstart" >&2; \
	exit 1
