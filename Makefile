# One word a command; CONTRIBUTING.md says what each is for.
PYTHON ?= python3
SOURCE ?= de
TARGET ?= en
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: setup demo test test-crash test-hostile test-lowest check proofs quality format tree wasm clean

setup: $(INSTALLED)

# A PyTorch that is already installed is used if it satisfies the constraints: the environment sees the outer one's packages.
$(INSTALLED): pyproject.toml constraints.txt tools/make_environment.py
	$(PYTHON) tools/make_environment.py

# A picture with Chinese characters needs a font that has them: an extra, since it is 85 MB.
demo: setup
	$(if $(filter zh,$(SOURCE) $(TARGET)),$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[zh]")
	$(BIN)/multihead demo --source-language $(SOURCE) --target-language $(TARGET)

# As many files at a time as there are cores (but not more than 4), each on one thread. mypy runs beside them. The tests
# start hundreds of processes, so compiled modules are kept, whatever the environment says.
test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; \
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile \
		--no-loadscope-reorder; tests=$$?; \
	wait $$types && exit $$tests

# A training is killed 200 times at random moments; what it ends with is compared bit for bit.
test-crash: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m proof tests/cli/test_crash.py

# The long form of the tests against hostile files, sizes and clients.
test-hostile: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m hostile

# The tests with the lowest versions that pyproject.toml allows. Their own warnings are no errors.
# `make test-lowest TESTS=tests/serving` runs some of them.
TESTS ?=
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e ".[demo,dev]"
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -q -W default -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(TESTS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

proofs: setup
	$(BIN)/python -m pytest -q -m proof

# BLEU for an hour of training on Multi30k, which lies beside the project; two hours with the other direction.
quality: setup
	$(BIN)/python benchmarks/quality.py --output quality/de-en --source de --target en --json quality-de-en.json
	$(BIN)/python benchmarks/quality.py --output quality/en-de --source en --target de --json quality-en-de.json

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tree in ARCHITECTURE.md, from the first lines of the files.
tree:
	$(PYTHON) tools/draw_tree.py

# The compiled search for browsers, after a change of src/multihead/engine/native. The compiler is an extra of 80 MB.
wasm: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[wasm]"
	$(BIN)/python tools/build_wasm.py

clean:
	rm -rf .venv .venv-lowest build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
