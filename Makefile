# CONTRIBUTING.md describes the targets.
PYTHON ?= python3
SOURCE ?= de
TARGET ?= en
BIN := .venv/bin
INSTALLED := .venv/.installed
LOWEST := .venv-lowest/.installed
SITE := .venv/.site
RELEASE := .venv/.release

# With a given Python (make setup PYTHON=python3.12), an existing environment is checked to have the same version, since
# it would otherwise be used as it is.
COMPARE := $(if $(filter file,$(origin PYTHON)),,$(PYTHON) tools/make_environment.py --compare)

.PHONY: setup demo test test-crash test-elastic test-hostile test-lowest test-lowest-short check mutants proofs quality time-to-bleu format tree wasm site wheel tutorials clean

setup: $(INSTALLED)

# If $(PYTHON) has the PyTorch version of the constraints, the environment uses it: it sees the packages of $(PYTHON).
$(INSTALLED): pyproject.toml constraints.txt tools/make_environment.py | same-python
	$(PYTHON) tools/make_environment.py

$(LOWEST): pyproject.toml constraints-lowest.txt tools/make_environment.py | same-python-lowest
	$(PYTHON) tools/make_environment.py --lowest

same-python:
	@$(COMPARE)

same-python-lowest:
	@$(if $(COMPARE),$(COMPARE) --lowest)

# Pictures with Chinese characters need a font of 85 MB, which is an extra.
demo: setup
	$(if $(filter zh,$(SOURCE) $(TARGET)),$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[zh]")
	$(BIN)/multihead demo --source-language $(SOURCE) --target-language $(TARGET)

# Runs as many test files in parallel as there are cores (at most 4), each on one thread, and mypy at the same time. The
# tests start hundreds of processes, so compiled modules are cached even if the environment says otherwise.
test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; \
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile \
		--no-loadscope-reorder; tests=$$?; \
	wait $$types && exit $$tests

# Kills a training 200 times at random moments, and compares its final result bit for bit with an undisturbed one.
test-crash: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m proof tests/cli/test_crash.py

# Kills processes of a distributed training fifty times, with and without their agent.
test-elastic: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m elastic

# The long form of the tests against hostile files, sizes and clients.
test-hostile: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m hostile

# The tests with the lowest versions that pyproject.toml allows. Warnings of these versions are not errors.
# `make test-lowest TESTS=tests/serving` runs some of them.
TESTS ?=
TEST_LOWEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -q -W default \
	-n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test-lowest: $(LOWEST)
	$(TEST_LOWEST) $(TESTS)

# The short form imports every module and every package with a floor: commands and their errors, a training, a server,
# formats of other programs, plots. The plugin tests/support/floors.py fails if no test imports one of these packages.
SHORT_FORM := tests/test_floors.py \
	tests/cli/test_commands.py \
	tests/cli/test_bad_input.py::test_a_wrong_command_line \
	tests/cli/test_bad_input.py::test_settings_that_cannot_be \
	tests/cli/test_bad_input.py::test_a_misspelt_key_in_a_file \
	tests/cli/test_bad_input.py::test_a_model_that_is_none \
	tests/cli/test_bad_input.py::test_how_a_command_ends \
	tests/runs/translator/test_train_workflow.py::test_a_run_that_was_stopped_ends_as_the_one_that_was_not \
	tests/runs/translator/test_train_workflow.py::test_the_records_are_written_for_tensorboard_too \
	tests/serving/test_server_process.py::test_several_models_serve_libretranslates_client \
	tests/serving/test_contract.py::test_what_can_be_got_is_as_documented \
	tests/serving/test_translating.py \
	tests/serving/test_file_formats.py \
	tests/serving/test_http_protocol.py \
	tests/serving/page/test_docs_page.py \
	tests/interop/formats/test_there_and_back.py \
	tests/interop/formats/test_argos.py \
	tests/interop/formats/test_ctranslate2.py \
	tests/interop/formats/test_onnx.py \
	tests/interop/formats/test_transformers.py \
	tests/interop/formats/test_marian_tokenizer.py \
	tests/interop/formats/test_sentencepiece_json.py \
	tests/interop/test_exporting.py \
	tests/interop/test_importing.py \
	tests/data/toy/test_numbers.py \
	tests/data/test_text_files_compressed.py \
	tests/shards/test_storage.py \
	tests/shards/test_ray_engine.py \
	tests/inspection/test_plots.py \
	tests/training/test_tensorboard.py \
	tests/text/test_detection.py \
	tests/text/test_tokenizer.py \
	tests/text/test_hugging_face.py \
	tests/text/test_sentences.py \
	tests/text/subword_nmt/test_subword_nmt.py \
	tests/metrics/test_scores.py \
	tests/attention/torch_compatible/test_drop_in_samples.py \
	tests/attention/test_attention_tracing.py \
	tests/attention/test_attention_backends.py \
	tests/attention/backends/test_attention_flex.py \
	tests/test_configuration.py

test-lowest-short: $(LOWEST)
	.venv-lowest/bin/ruff check --quiet .
	.venv-lowest/bin/ruff format --quiet --check .
	PYTHONPATH=tests/support $(TEST_LOWEST) -p floors $(SHORT_FORM)

# Runs the tests that docs/coverage.md names on copies of the package with faults: they must detect every fault.
mutants: setup
	$(BIN)/python tools/mutants.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

proofs: setup
	$(BIN)/python -m pytest -q -m proof

# BLEU after an hour of training on Multi30k, in each direction. The corpus must be beside the project.
quality: setup
	$(BIN)/python benchmarks/quality.py --output quality/de-en --source de --target en --json quality-de-en.json
	$(BIN)/python benchmarks/quality.py --output quality/en-de --source en --target de --json quality-en-de.json

# Seconds of training until BLEU 30, 35, 38 and 40: ten minutes of ours, and at most three hours of the best peer.
time-to-bleu: setup
	$(BIN)/python benchmarks/time_to_bleu.py --output time-to-bleu --json time-to-bleu.json

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Generates the tree in ARCHITECTURE.md from the first lines of the files.
tree:
	$(PYTHON) tools/draw_tree.py

# Compiles the search for browsers; needed after a change in src/multihead/engine/native. The compiler takes 80 MB.
wasm: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[wasm]"
	$(BIN)/python tools/build_wasm.py

# Builds the site in build/site; every warning is an error. docs/site.md describes it.
$(SITE): $(INSTALLED) pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[site]"
	touch $(SITE)

site: $(SITE)
	$(BIN)/mkdocs build --strict --quiet --clean

# Runs the tutorials as notebooks, at full size, and writes their outputs and pictures into docs/tutorials.
tutorials: $(SITE)
	$(BIN)/python tools/run_tutorials.py

# Builds a release in dist/: the sources, and a wheel with compiled libraries for this system (two minutes of
# compilation). The wheel is then tested in an environment without a compiler. docs/installation.md describes it.
$(RELEASE): $(INSTALLED) pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[release]"
	touch $(RELEASE)

wheel: $(RELEASE)
	rm -rf dist
	$(BIN)/python -m build --config-setting native=true
	$(BIN)/twine check --strict dist/*
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m wheel tests/test_wheel.py tests/engine/test_levels.py

clean:
	rm -rf .venv .venv-lowest build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks examples src tests tools -name __pycache__ -prune -exec rm -rf {} +
