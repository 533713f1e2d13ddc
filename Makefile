# A thin shell around CMake: every target does its own set-up. `cmake --preset
# release` works without make for those who bring their own Torch.

PRESET ?= release
BUILD := build/$(PRESET)
SOURCES = $(shell git ls-files '*.cpp' '*.h' ':!third_party')
FORMAT := clang-format-14
JOBS ?= $(shell nproc)

.PHONY: all setup configure train test python bench fuzz format clean
.PHONY: docs check-install check-alone check-aarch64 check-tidy check-format

all: configure
	cmake --build $(BUILD) -j $(JOBS) --target gradwire_cli gradwire_examples

setup:
	@tools/setup

configure: setup
	@test -f $(BUILD)/build.ninja || cmake --preset $(PRESET)

train: configure
	cmake --build $(BUILD) -j $(JOBS) --target gradwire_cli
	$(BUILD)/gradwire train --nproc 2 --hook allreduce --data fashion-mnist \
	  --model cnn --epochs 2 --batch 128 --lr 0.05 --seed 1

test: configure
	cmake --build $(BUILD) -j $(JOBS)
	ctest --preset $(PRESET)
	$(MAKE) --no-print-directory python
	GRADWIRE_BUILD=$(abspath $(BUILD)) OMP_NUM_THREADS=1 \
	  .venv/bin/python -m pytest -q -n 3 python/tests

# The package, into .venv. With the compiler's name as CMake knows it, so that
# the cache has the library already.
python:
	@tools/setup python
	CXX=$${CXX:-c++} .venv/bin/pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps .

# Every header and source includes what it needs. What this
# builds is not run.
check-alone:
	@tools/setup clang python
	@test -f build/alone/build.ninja || cmake --preset alone
	cmake --build build/alone -j $(JOBS)

# gradwire_core for 64-bit Arm, its tests in an emulator.
check-aarch64:
	@tools/setup aarch64
	@test -f build/aarch64/build.ninja || cmake --preset aarch64
	cmake --build build/aarch64 -j $(JOBS)
	ctest --preset aarch64 -j $(JOBS)

# clang-tidy over the library. Configured anew each time, which is quick, for
# the files of rooms change.
check-tidy:
	@tools/setup tidy
	cmake --preset tidy >/dev/null
	tools/check_tidy

# From nothing but torch to an environment without gradwire again.
check-install:
	@tools/setup python
	tools/check_install

# The tables of docs/ that are made from the registries.
docs: configure
	cmake --build $(BUILD) -j $(JOBS) --target gradwire_cli
	tools/docs_tables $(BUILD)/gradwire --write

bench: configure
	cmake --build $(BUILD) -j $(JOBS) --target gradwire_cli
	$(BUILD)/gradwire bench --nproc 2 --hooks none,allreduce,noop \
	  --peer .venv/bin/python --json $(BUILD)/bench.json

# Every decoder, and every reader of bytes from elsewhere, against made-up
# messages, FUZZ_SECONDS in all.
FUZZ_SECONDS ?= 60
fuzz:
	@tools/setup clang
	@test -f build/fuzz/build.ninja || cmake --preset fuzz -S fuzz
	cmake --build build/fuzz -j $(JOBS)
	FUZZ_SECONDS=$(FUZZ_SECONDS) fuzz/run build/fuzz

format:
	@tools/setup format
	@test -n "$(SOURCES)" || { echo "no sources: is this a git checkout?" >&2; exit 1; }
	$(FORMAT) -i $(SOURCES)

check-format:
	@tools/setup format
	@test -n "$(SOURCES)" || { echo "no sources: is this a git checkout?" >&2; exit 1; }
	$(FORMAT) --dry-run --Werror $(SOURCES)

clean:
	rm -rf build
