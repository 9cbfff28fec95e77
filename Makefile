# Makefile - builds ./train_gpt, and proves it. `make help` lists the rest; `make test SUITE=norm` is the edit loop.
#
# train_gpt.cu is the one translation unit of the program that sees kernels: the host compiler builds it as C++ for the
# CPU, nvcc as CUDA. The *.cpp beside it are host-only. Objects lie in build/<compiler>, build/debug, build/cuda.

# ---- choices, all of which a command line may override
CXX        := $(if $(filter default,$(origin CXX)),g++,$(CXX))
DEBUG      ?=#            1: checked build, -O1 with address and undefined-behaviour sanitizers
TSAN       ?=#            1: ThreadSanitizer on one-thread blocks, teams of one, no MPI (make tsan-ranks)
BARE       ?=#            1: no OpenMP and no optional library, the nearest thing to a bare Mac
SUITE      ?=#            names of test suites: build and run only those
ON         ?=#            host, kernels or simt: run only that of their binaries
TEST_ARGS  ?=#            flags of doctest
ARGS       ?=#            flags for `make train`
BENCH      ?=#            rows and types that `make bench` measures: all
CUDA_ARCHS ?= 90
NVCC       ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
BUILD      ?= build/$(if $(DEBUG),debug,$(notdir $(CXX)))$(if $(BARE),-bare)
PROGRAM    ?= $(if $(filter build/g++,$(BUILD)),train_gpt,$(BUILD)/train_gpt)

# Suites whose kernels also run thread for thread as fibers (-DBT_SIMT), and those that exist only there.
SIMT_SUITES := device memory comm norm rope activation embed loss copy reduce adamw matmul attention quantize fp8
SIMT_ONLY   := simt mma
PROGRAMS    := cli resume commands blackbox processes gpu#   suites that start the program
TSAN_QUICK  := simt reduce norm#   what `make test` runs under ThreadSanitizer; `make tsan` runs them all

CORES := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(CORES)
endif
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: gpu-check cuda-tests apart
.PHONY: all train test tests headers tsan tsan-ranks matrix parity reference mutants bug copytest fuzz kill-test test-long clang cuda
.PHONY: archs kernel-report kernel-report-check deps demo doctor bench pictures docs docs-check exercise grade clean help need-program need-doctest FORCE

all: $(PROGRAM)

# ---- what this machine has: probed once a folder, again when the Makefile changes or `make deps` has run
CONFIG := $(BUILD)/config.mk
INCLUDES := -I. $(patsubst %,-isystem %,$(wildcard third_party/include /opt/homebrew/include /usr/local/include/onednn))
LIBDIRS := $(patsubst %,-L%,$(wildcard /opt/homebrew/lib))
ifneq ($(filter-out deps clean help,$(or $(MAKECMDGOALS),all)),)
include $(CONFIG)
endif

HAS   = printf '\#if __has_include(<%s>)\nBT_YES\n\#endif\n' $$1 | $(CXX) -std=c++20 $(INCLUDES) -E -P -x c++ - | \
	grep -q BT_YES
LINKS = printf '%b\n' "$$1" > $@.cpp; shift; $(CXX) -std=c++20 $(INCLUDES) $@.cpp -o $@.out "$$@" $(LIBDIRS) 2>/dev/null
WHICH = printf '%b\n' '\#ifdef __apple_build_version__\napple __clang_major__' \
	'\#elif defined __clang__\nclang __clang_major__\n\#else\ngcc __GNUC__\n\#endif' | $(CXX) -E -P -x c++ - 2>/dev/null

$(CONFIG): Makefile
	@mkdir -p $(@D); has() { $(HAS); }; links() { $(LINKS); }; \
	set -- $$($(WHICH)); other="try make CXX=g++ or make CXX=clang++-19; make deps ALL=1 gets both"; \
	case $$1 in gcc) least=11;; clang) least=16;; apple) least=15;; \
	    *) [ $(CXX) != g++ ] || { echo "MISSING := g++" > $@; exit 0; }; \
	       echo "$(CXX) does not compile C++: $$other" >&2; exit 1;; esac; \
	if [ $$2 -lt $$least ]; then echo "$(CXX) is $$1 $$2, the oldest that will do is $$least: $$other" >&2; exit 1; fi; \
	{ echo "COMPILER := $$1 $$2"; missing=; \
	has nlohmann/json.hpp || missing="$$missing nlohmann-json"; \
	has CLI/CLI.hpp || missing="$$missing CLI11"; \
	has toml++/toml.h || missing="$$missing toml++"; \
	echo "MISSING := $$missing"; \
	! has doctest/doctest.h || echo "DOCTEST := yes"; \
	for f in '-march=native -mprefer-vector-width=512' -march=native -mcpu=native; do \
	    ! links 'int main() {}' -Werror $$f || { echo "NATIVE := $$f"; break; }; done; \
	if [ -z "$(BARE)" ]; then \
	    omp='#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }'; \
	    brew=$$(brew --prefix libomp 2>/dev/null || true); \
	    if links "$$omp" -fopenmp; then echo "OPENMP := -fopenmp"; \
	    elif [ -n "$$brew" ] && links "$$omp" -Xclang -fopenmp -I$$brew/include -L$$brew/lib -lomp; then \
	        echo "OPENMP := -Xclang -fopenmp -I$$brew/include"; echo "LIBS += -L$$brew/lib -lomp"; fi; \
	    if links '#include <dnnl.h>\nint main() { return !dnnl_version(); }' -ldnnl; then \
	        echo "HAVE += -DBT_ONEDNN"; echo "LIBS += -ldnnl"; fi; \
	    blas='#include <cblas.h>\nint main() { float x = 1; return cblas_sdot(1, &x, 1, &x, 1) < 1; }'; \
	    for l in openblas cblas; do if links "$$blas" -l$$l; then \
	        echo "HAVE += -DBT_CBLAS"; echo "LIBS += -l$$l"; break; fi; done; \
	    mpi='#define OMPI_SKIP_MPICXX 1\n#include <mpi.h>\nint main() { int there; return MPI_Initialized(&there); }'; \
	    flags=$$(mpicxx --showme:compile 2>/dev/null || pkg-config --cflags mpi-c 2>/dev/null); \
	    libs=$$(mpicxx --showme:link 2>/dev/null || pkg-config --libs mpi-c 2>/dev/null); \
	    libs=$$(echo $$libs | sed 's/-lmpi_cxx//'); \
	    if links "$$mpi" $$flags $$libs; then echo "MPI := -DBT_MPI $$flags"; echo "MPI_LIBS := $$libs"; \
	        echo 'HAVE += $$(MPI)'; echo 'LIBS += $$(MPI_LIBS)'; fi; \
	    for c in $(if $(DEBUG),,clang++-19 $(CXX)); do \
	        if echo 'int main() {}' > $@.cpp && $$c -fsanitize=thread $@.cpp -o $@.out >/dev/null 2>&1 && \
	            ./$@.out >/dev/null 2>&1; then echo "TSAN_CXX := $$c"; break; fi; done; \
	fi; } > $@; rm -f $@.cpp $@.out

# ---- flags. NaN and infinity must survive: re-association yes, finite-math never.
WARN := -Wall -Wextra $(if $(WERROR),-Werror)
FP   := -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros
CHECKED := -O1 -g -DBT_CHECKED -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS -fno-sanitize-recover=all
BASE := -std=c++20 $(WARN) $(INCLUDES)
ifneq ($(DEBUG),)
SANITIZE     := -fsanitize=address,undefined
KERNEL_FLAGS := $(BASE) $(CHECKED) $(SANITIZE) $(OPENMP) $(HAVE)
SIMT_FLAGS   := $(BASE) $(CHECKED) -fsanitize=undefined -DBT_SIMT $(HAVE)
HOST_FLAGS   := $(BASE) $(CHECKED) $(SANITIZE)
else ifneq ($(TSAN),)
SANITIZE     := -fsanitize=thread
OPENMP       :=#          its barriers are unknown to ThreadSanitizer, and so are those of MPI
MPI          :=
MPI_LIBS     :=
KERNEL_FLAGS := $(BASE) -O1 -g $(SANITIZE) $(HAVE)
SIMT_FLAGS   := $(BASE) -O1 -g $(SANITIZE) -DBT_SIMT $(HAVE)
HOST_FLAGS   := $(BASE) -O1 -g $(SANITIZE)
else
KERNEL_FLAGS := $(BASE) -O3 $(NATIVE) $(OPENMP) $(FP) $(HAVE)
SIMT_FLAGS   := $(BASE) -O1 -g1 -DBT_SIMT $(HAVE)
HOST_FLAGS   := $(BASE) -O1
endif
TSAN_FLAGS := $(BASE) -O1 -g -fsanitize=thread -DBT_SIMT
ARCH_FLAGS := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a))
NVCC_FLAGS := -std=c++20 -O3 -I. -Xcompiler -Wall $(if $(word 2,$(CUDA_ARCHS)),$(ARCH_FLAGS),-arch=sm_$(CUDA_ARCHS))
LINK = $(CXX) $(SANITIZE) $(OPENMP) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LIBDIRS) $(LIBS) -pthread
QUIET   = $(if $(filter gcc$(CXX),$(firstword $(COMPILER))$(1)),-Wno-restrict)#   g++ 12 imagines overlapping strings
COMPILE = @mkdir -p $(@D); echo "  $<$(if $(findstring SIMT,$(1)), (simt))"; \
	$(2) $(1) $(call QUIET,$(2)) $(CXXFLAGS) -MMD -MP -c

# Objects are rebuilt when their flags change; doctor.o alone knows the commit.
STAMP = $(shell mkdir -p $(dir $(1)); echo '$(2)' | cmp -s - $(1) || echo '$(2)' > $(1))
ifneq ($(COMPILER),)
$(call STAMP,$(BUILD)/flags,$(CXX) $(COMPILER) $(KERNEL_FLAGS) $(CXXFLAGS))
COMMIT := $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
$(call STAMP,$(BUILD)/commit,$(COMMIT))
endif

# ---- the program
BODIES := $(patsubst %.cpp,$(BUILD)/host/%.o,$(wildcard *.cpp config/*.cpp comm/*.cpp))

$(PROGRAM): $(BUILD)/cpu/train_gpt.o $(BODIES) | need-program
	@$(LINK)
	@echo "built ./$@"
need-program:
	@$(if $(strip $(MISSING)),echo "missing:$(MISSING); make deps installs what is required" >&2; exit 1,:)
need-doctest:
	@$(if $(DOCTEST),:,echo "missing: doctest; make deps installs it" >&2; exit 1)

$(BUILD)/cpu/%.o: %.cu $(BUILD)/flags | need-program
	$(call COMPILE,$(KERNEL_FLAGS) $(TEST_DEFINES),$(CXX)) -x c++ $< -o $@
$(BUILD)/simt/%.o: %.cu $(BUILD)/flags
	$(call COMPILE,$(SIMT_FLAGS),$(CXX)) -x c++ $< -o $@
$(BUILD)/host/%.o: %.cpp $(BUILD)/flags | need-program
	$(call COMPILE,$(HOST_FLAGS) $(TEST_DEFINES),$(CXX)) $< -o $@
build/tsan/%.o: %.cu $(BUILD)/flags
	$(call COMPILE,$(TSAN_FLAGS),$(TSAN_CXX)) -x c++ $< -o $@
build/tsan/%.o: %.cpp $(BUILD)/flags
	$(call COMPILE,$(TSAN_FLAGS),$(TSAN_CXX)) $< -o $@
$(BUILD)/host/doctor.o: $(BUILD)/commit
$(BUILD)/host/doctor.o: HOST_FLAGS += $(HAVE) $(if $(OPENMP),-DBT_OPENMP) -DBT_COMMIT='"$(COMMIT)"' \
	-DBT_SOURCE='"$(CURDIR)"' -DBT_FLAGS='"$(filter-out -I% -W%,$(KERNEL_FLAGS) $(CXXFLAGS))"'

train:
	@$(if $(strip $(MISSING)),$(MAKE) --no-print-directory deps;) $(MAKE) --no-print-directory all
	@./$(PROGRAM) $(ARGS)
doctor: $(PROGRAM)
	@./$(PROGRAM) doctor

# ---- tests: one binary a device, each object compiled on its own
names   = $(patsubst test/%_test.$(1),%,$(wildcard test/*_test.$(1)))
wanted  = $(if $(SUITE),$(filter $(SUITE),$(1)),$(1))
objects = $(patsubst %,$(1)/test/%_test.o,$(2))
HOST_TESTS   := $(call wanted,$(call names,cpp))
CPU_TESTS    := $(call wanted,$(filter-out $(SIMT_ONLY),$(call names,cu)))
SIMT_TESTS   := $(if $(wildcard test/simt.h),$(call wanted,$(filter $(SIMT_SUITES) $(SIMT_ONLY),$(call names,cu))))
NEED_BODIES  := $(filter-out $(SIMT_SUITES),$(CPU_TESTS))#   suites of the model read configurations and files
MODEL_TESTS  := $(patsubst test/%_test.cu,%,$(shell grep -lE '"test/(instances|model|ranks|layouts)\.h"' test/*_test.cu))
BIN          := $(BUILD)$(if $(SUITE),/suite/$(subst $() ,+,$(strip $(SUITE))))
TEST_MAIN    := $(BUILD)/host/test/main.o
TEST_DEFINES = $(if $(findstring /test/,$@),-DBT_PROGRAM='"./$(PROGRAM)"' -DBT_GPU_CHECK='"$(BUILD)/gpu_check"')

$(BIN)/test_host: $(TEST_MAIN) $(call objects,$(BUILD)/host,$(HOST_TESTS)) $(BODIES)
$(BIN)/test_kernels: $(TEST_MAIN) $(call objects,$(BUILD)/cpu,$(CPU_TESTS)) $(if $(NEED_BODIES),$(BODIES)) \
	$(if $(filter $(MODEL_TESTS),$(CPU_TESTS)),$(BUILD)/cpu/test/instances.o)
$(BIN)/test_simt: $(TEST_MAIN) $(call objects,$(BUILD)/simt,$(SIMT_TESTS))
$(BIN)/test_host $(BIN)/test_kernels $(BIN)/test_simt: | need-doctest
	@mkdir -p $(@D); $(LINK)
build/tsan/quick: build/tsan/test/main.o $(call objects,build/tsan,$(filter $(TSAN_QUICK),$(SIMT_TESTS)))
build/tsan/full$(subst $() ,+,$(strip $(SUITE))): build/tsan/test/main.o $(call objects,build/tsan,$(SIMT_TESTS))
build/tsan/quick build/tsan/full$(subst $() ,+,$(strip $(SUITE))): | need-doctest
	@$(TSAN_CXX) -fsanitize=thread $^ -o $@ -pthread

REPORT  := build/kernel_report
REPORTS := $(if $(SUITE)$(DEBUG)$(BARE)$(ON),,$(if $(filter Linux,$(shell uname)),test/kernel_report.sh))
RACES := $(if $(filter $(TSAN_QUICK),$(SIMT_TESTS)),build/tsan/quick test/simt_race.sh)
TESTS := $(filter $(if $(ON),%/test_$(ON),%),$(if $(HOST_TESTS),$(BIN)/test_host) $(if $(CPU_TESTS),$(BIN)/test_kernels) \
	$(if $(SIMT_TESTS),$(BIN)/test_simt)) $(if $(SUITE),,$(if $(TSAN_CXX),$(RACES))) $(REPORTS)

# Runs the binaries, adds up doctest's summaries; a binary that ends without one (crash, sanitizer) is one failure, a
# script is one test.
LIMIT   := $(if $(shell command -v timeout),timeout 900)
SUMMARY := s/^.doctest. test cases:.*| *\([0-9]*\) passed.*| *\([0-9]*\) failed.*| *\([0-9]*\) skipped.*/\1 \2 \3/p
run = @passed=0 failed=0 skipped=0; for t in $(1); do \
	    log=$(BUILD)/$$(basename $$t).log; echo "== $$t"; \
	    status=0; CXX=$(TSAN_CXX) $(LIMIT) ./$$t $(TEST_ARGS) > $$log 2>&1 || status=$$?; \
	    set -- $$(sed -n '$(SUMMARY)' $$log | tail -1); \
	    case $$t in *.sh) [ $$status -ne 0 ] || set -- 1;; esac; \
	    if [ $$status -ne 0 ] && [ $${2:-0} -eq 0 ]; then set -- $${1:-0} 1 $$3; echo "$$t: status $$status"; fi; \
	    passed=$$((passed + $${1:-0})) failed=$$((failed + $${2:-0})) skipped=$$((skipped + $${3:-0})); \
	    if [ $$status -eq 0 ]; then grep 'test cases' $$log || cat $$log; else cat $$log; fi; \
	done; line="$$passed passed, $$failed failed"; [ $$skipped -eq 0 ] || line="$$line, $$skipped skipped"; \
	echo "$$line"; [ $$failed -eq 0 ] && [ $$passed -gt 0 ]

test:
	@$(if $(strip $(MISSING))$(if $(DOCTEST),,doctest),$(MAKE) --no-print-directory deps;) \
	    $(MAKE) --no-print-directory tests
tests: $(if $(SUITE),$(if $(filter $(PROGRAMS),$(SUITE)),$(PROGRAM)),$(PROGRAM) headers) $(TESTS) $(if $(REPORTS),$(REPORT)/report) \
	$(if $(filter gpu,$(or $(SUITE),gpu)),$(BUILD)/gpu_check)
	$(if $(strip $(TESTS)),,@echo "no test suite is called $(SUITE)" >&2)
	$(call run,$(TESTS))
# The suites whose ranks are threads, with the libraries that a run uses.
RANK_SUITES := comm wire zero fsdp tp checkpoint
tsan-ranks:
	@$(if $(TSAN_CXX),:,echo "tsan-ranks needs a compiler with -fsanitize=thread; make deps ALL=1 installs one" >&2; exit 1)
	@TSAN_OPTIONS=suppressions=test/tsan.supp $(MAKE) --no-print-directory CXX=$(TSAN_CXX) TSAN=1 BUILD=build/ranks \
	    SUITE='$(or $(SUITE),$(RANK_SUITES))' test
# Every layout (test/layouts.h), of which `make test` takes a part.
matrix:
	@BT_MATRIX=all $(MAKE) --no-print-directory LIMIT='$(LIMIT:900=3600)' \
	    test SUITE='zero fsdp tp resharded' && grep -h 'matrix:' $(BUILD)/test_kernels.log
# Device memory that the host can't touch (test/apart.h), as on a GPU: runs in every layout, by a CPU build.
apart:
	@$(MAKE) --no-print-directory BARE=1 NATIVE= CXXFLAGS='-include test/apart.h -O1 -g1' BUILD=build/apart \
	    PROGRAM=build/apart/train_gpt build/apart/train_gpt
	@CXX=$(CXX) test/apart.sh build/apart/train_gpt
tsan: build/tsan/full$(subst $() ,+,$(strip $(SUITE)))
	$(call run,$< test/simt_race.sh)

# Every header compiles when it is included alone.
HEADERS := $(filter-out device/% test/% dev/% build/% third_party/%,$(wildcard *.h */*.h */*/*.h))
headers: $(patsubst %,$(BUILD)/headers/%.ok,$(HEADERS))
$(BUILD)/headers/%.ok: % $(BUILD)/flags
	@mkdir -p $(@D); $(CXX) $(KERNEL_FLAGS) -fsyntax-only -MMD -MP -MF $(@:.ok=.d) -MT $@ -x c++ -include $< /dev/null
	@touch $@

# The two-minute tour, and where its pages are.
demo: $(PROGRAM)
	@lessons/demo.sh
# The same steps in many layouts of 8 ranks: loss, norm, bytes by axis, memory; fails if they are not equal.
parity: $(PROGRAM)
	@lessons/parity.sh
# What PyTorch and transformers compute, next to what this program does: the worst errors, a row a model.
reference:
	@$(MAKE) --no-print-directory test SUITE=parity && sed -n 's/^parity: //p' $(BUILD)/test_kernels.log

# The pictures of the README, by headless Chromium (dev/pictures).
pictures: $(PROGRAM)
	@dev/pictures.sh
# The outputs and pictures of README.md and lessons/*.md: anew, or compared with what is there. Exercises on a copy of the source.
docs: $(PROGRAM)
	@PROGRAM=$(PROGRAM) dev/docs.sh
docs-check: $(PROGRAM)
	@PROGRAM=$(PROGRAM) dev/docs.sh --check
exercise:
	@lessons/exercise.sh $(NAME)
grade:
	@lessons/exercise.sh --grade $(NAME)
# How near a step is to its own matrix products and to the machine; BENCH="124M-B4-T64 bf16" picks rows (dev/bench).
# BENCH=ranks: two ranks with a core each next to one with both (dev/bench/ranks.sh).
bench: $(BUILD)/bench $(PROGRAM)
	@$(if $(filter ranks,$(BENCH)),,./$< $(BENCH))
	@$(if $(filter-out ranks,$(BENCH)),,dev/bench/ranks.sh)
$(BUILD)/bench: $(BUILD)/cpu/dev/bench/bench.o $(BODIES)
	@$(LINK)

# One-line bugs (test/mutants.txt): the suites must notice every one of them; `bug` trains with one, beside the right run.
mutants:
	@test/mutants.sh $(NAME)
bug:
	@test/mutants.sh --show $(NAME) $(ARGS)

# Each header, with what its second line says and nothing else, in a stranger's program.
copytest:
	@NVCC=$(NVCC) test/copytest.sh $(NAME)

# A libFuzzer target for each parser (test/fuzz/x.cpp), FUZZ_SECONDS each; SUITE names some of them. What it finds stays
# in build/fuzz: crash-x-..., which `build/fuzz/x FILE` repeats.
FUZZ_SECONDS ?= 60
FUZZ_CXX   ?= clang++-19
FUZZ_FLAGS := $(BASE) $(CHECKED) -fsanitize=fuzzer,address,undefined -DDOCTEST_CONFIG_DISABLE
FUZZERS    := $(patsubst %,build/fuzz/%,$(call wanted,$(patsubst test/fuzz/%.cpp,%,$(wildcard test/fuzz/*.cpp))))
build/fuzz/host/%.o: %.cpp $(BUILD)/flags | need-program
	$(call COMPILE,$(FUZZ_FLAGS),$(FUZZ_CXX)) $< -o $@
build/fuzz/%: build/fuzz/host/test/fuzz/%.o $(patsubst $(BUILD)/%,build/fuzz/%,$(filter-out %/doctor.o,$(BODIES)))
	@$(FUZZ_CXX) -fsanitize=fuzzer,address,undefined $^ -o $@
fuzz: $(FUZZERS)
	@passed=0 failed=0; for t in $^; do name=$${t##*/}; mkdir -p build/fuzz/corpus/$$name build/fuzz/tmp; \
	    echo "== $$t, $(FUZZ_SECONDS) s"; \
	    if TMPDIR=build/fuzz/tmp $$t -max_total_time=$(FUZZ_SECONDS) -timeout=20 -artifact_prefix=build/fuzz/crash-$$name- \
	        build/fuzz/corpus/$$name > build/fuzz/$$name.log 2>&1; then passed=$$((passed + 1)); tail -1 build/fuzz/$$name.log; \
	    else failed=$$((failed + 1)); grep -E 'ERROR|error|terminat|what|crash-' build/fuzz/$$name.log | head; fi; \
	done; rm -rf build/fuzz/tmp; echo "$$passed passed, $$failed failed"; [ $$failed -eq 0 ] && [ $$passed -gt 0 ]

# 50 kills at random moments of a run that saves after every step: one rank, two threads, one of two processes; `make test`
# does five of each.
kill-test:
	@BT_KILLS=50 $(MAKE) --no-print-directory test SUITE=resume TEST_ARGS='-tc=C6*'
	@grep -h 'kills, seed' $(BUILD)/test_host.log

# All that takes longer than `make test`, by name, or the k-th share of it: PART='fuzz clang', PART=2/3.
test-long:
	@test/long.sh $(PART)

clang:
	@$(MAKE) --no-print-directory CXX=clang++-19 BARE=1 BUILD=build/clang SUITE='$(SUITE)' test

# ---- CUDA: the same train_gpt.cu through nvcc, the same host bodies
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(NVCC))
NCCL := $(if $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h),yes)
cuda: train_gpt_cuda
train_gpt_cuda: build/cuda/train_gpt.o build/cuda/doctor.o $(filter-out %/doctor.o,$(BODIES))
	@$(NVCC) $(NVCC_FLAGS) $^ -o $@ -lcublasLt -lcublas $(if $(NCCL),-lnccl) $(MPI_LIBS)
	@echo "built ./$@ for sm_$(CUDA_ARCHS)"
build/cuda/train_gpt.o: train_gpt.cu build/cuda/flags | need-program
	@$(if $(NVCC),:,echo "make cuda needs nvcc of the CUDA Toolkit: not found in PATH or /usr/local/cuda" >&2; exit 1)
	@echo "  $< (nvcc, sm_$(CUDA_ARCHS))"
	@$(NVCC) $(NVCC_FLAGS) $(if $(NCCL),-DBT_NCCL) $(MPI) -ccbin $(CXX) -MMD -MP -c $< -o $@
build/cuda/doctor.o: doctor.cpp build/cuda/flags $(BUILD)/commit
	@$(CXX) $(BASE) -O1 -DBT_CUDA -DBT_SOURCE='"$(CURDIR)"' $(if $(NCCL),-DBT_NCCL) $(MPI) -DBT_COMMIT='"$(COMMIT)"' -DBT_FLAGS='"nvcc $(NVCC_FLAGS)"' \
	    -MMD -MP -c $< -o $@
# All that a GPU can prove, in nine minutes, into gpu/<card>-<driver>.json (dev/gpu_check); STAGES='rates memory': those.
KERNEL_SUITES := $(SIMT_SUITES)
LAYOUT_SUITES := zero fsdp tp resharded
gpu-check:
	@NVCC='$(NVCC)' MAKE='$(MAKE)' PROGRAM='./$(PROGRAM)' LOOKS='$(CUDA_LOOKS)' KERNEL_SUITES='$(KERNEL_SUITES)' \
	    LAYOUT_SUITES='$(LAYOUT_SUITES)' MODEL_SUITES='$(filter-out $(KERNEL_SUITES) $(LAYOUT_SUITES),$(CUDA_TESTS))' \
	    dev/gpu_check/check.sh $(STAGES)
# How near its kernels come to a copy and to one big product: the benchmark of gpu-check, and in small on a CPU.
$(BUILD)/gpu_check: $(BUILD)/cpu/dev/gpu_check/bench.o $(BODIES)
	@$(LINK)
build/cuda/gpu_check: build/cuda/dev/gpu_check/bench.o $(BODIES)
	@$(NVCC) $(NVCC_FLAGS) -ccbin $(CXX) $^ -lcublasLt -lcublas -o $@
# The suites of kernels, models and layouts on the device, a binary each: one that dies takes no other with it.
# CUDA_LOOKS: those that read device memory from the host; there cudaMalloc gives managed memory (test/managed.cpp), and
# launches wait (CUDA_LAUNCH_BLOCKING=1, dev/gpu_check). The others, and the program, have what a run has.
NVCC_COMPILE = @mkdir -p $(@D); echo "  $< (nvcc, sm_$(CUDA_ARCHS))"; $(NVCC) $(NVCC_FLAGS) \
	$(if $(filter gcc,$(firstword $(COMPILER))),-Xcompiler -Wno-restrict) -DBT_PROGRAM='"./train_gpt_cuda"' -ccbin $(CXX) -MMD -MP -c $< -o $@
CUDA_LOOKS := fsdp generate gpt gradcheck params parity resharded stats tp tp_ops train wire zero
CUDA_TESTS := $(call wanted,$(filter-out $(SIMT_ONLY),$(call names,cu)))
cuda-tests: $(patsubst %,build/cuda/test_%,$(CUDA_TESTS))
build/cuda/test/%.o: test/%.cu build/cuda/flags | need-program need-doctest
	$(NVCC_COMPILE)
build/cuda/dev/%.o: dev/%.cu build/cuda/flags | need-program
	$(NVCC_COMPILE)
build/cuda/test_%: build/cuda/test/%_test.o build/cuda/test/managed.o $(TEST_MAIN) $(BODIES)
	@$(NVCC) $(NVCC_FLAGS) -ccbin $(CXX) $(filter-out %/managed.o,$^) $(if $(filter $*,$(CUDA_LOOKS)),build/cuda/test/managed.o -Xlinker --wrap=cudaMalloc) \
	    $(LIBDIRS) -lcublasLt -lcublas $(MPI_LIBS) -o $@
$(patsubst %,build/cuda/test_%,$(MODEL_TESTS)): build/cuda/test/instances.o
build/cuda/test/managed.o: test/managed.cpp build/cuda/flags
	@mkdir -p $(@D); $(NVCC) $(NVCC_FLAGS) -ccbin $(CXX) -MMD -MP -c $< -o $@
build/cuda/flags: FORCE
	@mkdir -p $(@D); echo '$(NVCC) $(NVCC_FLAGS)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_FLAGS)' > $@

comma := ,
# For every architecture that somebody may have, in one program.
ALL_ARCHS := 75 80 89 90a 100a 120a
archs:
	@$(if $(NVCC),$(MAKE) --no-print-directory cuda CUDA_ARCHS='$(ALL_ARCHS)' && echo "1 passed$(comma) 0 failed",\
	    echo "skipped: there is no nvcc"; echo "0 passed$(comma) 0 failed$(comma) 1 skipped")

# ---- the kernel report: of every kernel its blocks and waves, registers and spills, bytes that it needs and that it moves
# (dev/kernel_report). ARCHS=all: all architectures; without nvcc its columns are skipped.
ARCHS      ?= 80 90a
REPORT_FOR := $(if $(filter all,$(ARCHS)),$(ALL_ARCHS),$(ARCHS))
kernel-report kernel-report-check: $(REPORT)/report $(if $(NVCC),$(REPORT_FOR:%=$(REPORT)/%/ptxas.log))
	@$< $(if $(filter %-check,$@),--check) $(shell grep -l __global__ kernels/*.h kernels/*/*.h comm/*.h) $(REPORT_FOR)
# Instrumented as for ThreadSanitizer, but linked with functions that count; memcpy too.
$(REPORT)/report: $(REPORT)/cases.o $(REPORT)/known.o $(REPORT)/traffic.o $(REPORT)/report.o
	@$(CXX) $^ -o $@ -rdynamic -Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset -ldl -pthread
$(REPORT)/%.o: dev/kernel_report/%.cu $(BUILD)/flags
	$(call COMPILE,$(BASE) -O1 -g1 -fsanitize=thread -DBT_SIMT -DBT_COUNTED $(if \
	    $(filter clang apple,$(COMPILER)),-mllvm -tsan-instrument-read-before-write),$(CXX)) -x c++ $< -o $@
$(REPORT)/%.o: dev/kernel_report/%.cpp $(BUILD)/flags | need-program
	$(call COMPILE,$(BASE) -O1,$(CXX)) $< -o $@
$(REPORT)/%/ptxas.log: dev/kernel_report/cases.cu
	@mkdir -p $(@D); echo "  $< (nvcc, sm_$*)"
	@$(NVCC) -std=c++20 -O3 -I. -arch=sm_$* -cubin -Xptxas -v --keep --keep-dir $(@D) -MMD -MP -MF $(@D)/ptxas.d -MT $@ $< \
	    -o $(@D)/cases.cubin > $@ 2>&1 || { cat $@; exit 1; }

# ---- what is needed
APT      := g++ nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libdnnl-dev doctest-dev
APT_ALL  := libopenmpi-dev openmpi-bin libopenblas-dev libpcre2-dev libutf8proc-dev clang-19 libclang-rt-19-dev llvm-19 chromium
DNF      := gcc-c++ json-devel cli11-devel tomlplusplus-devel onednn-devel doctest-devel
DNF_ALL  := openmpi-devel openblas-devel pcre2-devel utf8proc-devel clang chromium
BREW     := nlohmann-json cli11 tomlplusplus onednn doctest libomp
BREW_ALL := open-mpi openblas pcre2 utf8proc
GIT      := https://github.com
HEADERS_OF := nlohmann/json.hpp=$(GIT)/nlohmann/json/releases/download/v3.11.3/json.hpp \
	CLI/CLI.hpp=$(GIT)/CLIUtils/CLI11/releases/download/v2.4.2/CLI11.hpp \
	toml++/toml.h=https://raw.githubusercontent.com/marzer/tomlplusplus/v3.4.0/toml.hpp \
	doctest/doctest.h=https://raw.githubusercontent.com/doctest/doctest/v2.4.11/doctest/doctest.h

# The first package manager that can be used; with none, the header-only libraries go into an ignored folder.
deps:
	@rm -f build/*/config.mk; sudo=; [ "$$(id -u)" = 0 ] || sudo="sudo -n"; \
	may() { command -v $$1 >/dev/null && { [ -z "$$sudo" ] || sudo -n true 2>/dev/null; }; }; \
	each() { list=$$1; shift; for p in $$list; do \
	    "$$@" $$p </dev/null >/dev/null 2>&1 || echo "optional package $$p: not available here, skipped"; done; }; \
	if may apt-get; then \
	    apt="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends"; \
	    $$apt update </dev/null && $$apt install $(APT) </dev/null >/dev/null && \
	        each "$(if $(ALL),$(APT_ALL))" $$apt install && exit 0; \
	elif may dnf; then \
	    $$sudo dnf -q -y install $(DNF) </dev/null && each "$(if $(ALL),$(DNF_ALL))" $$sudo dnf -q -y install && exit 0; \
	elif command -v brew >/dev/null; then \
	    brew install -q $(BREW) && each "$(if $(ALL),$(BREW_ALL))" brew install -q && exit 0; \
	fi; \
	echo "no package manager can be used: fetching the header-only libraries into third_party/include"; \
	for pair in $(HEADERS_OF); do \
	    file=third_party/include/$${pair%%=*} url=$${pair#*=}; [ ! -s $$file ] || continue; mkdir -p $$(dirname $$file); \
	    curl -fsSL -o $$file $$url 2>/dev/null || wget -qO $$file $$url 2>/dev/null || { rm -f $$file; \
	        echo "$$url could not be fetched: install nlohmann-json, CLI11, toml++ and doctest by hand" >&2; exit 1; }; \
	done

clean:
	rm -rf build train_gpt train_gpt_cuda

help:
	@echo "make             build ./train_gpt                    make test        every suite; the last line counts them"
	@echo "make train       set up, build, train with defaults   make test SUITE=norm   one suite: the edit loop"
	@echo "make cuda        ./train_gpt_cuda (CUDA_ARCHS='90')   make tsan        CUDA threads as fibers, races reported"
	@echo "make demo        the two-minute tour: runs, pictures, layouts, a bug that trains, the test that catches it"
	@echo "make doctor      what was found, what is off          make clang       clang++-19, no libraries: tests"
	@echo "make deps        install what is required (ALL=1: what is optional too)"
	@echo "make headers     each header compiles alone           make DEBUG=1     checked build (make DEBUG=1 test too)"
	@echo "make mutants     breaks a line at a time: a suite must notice    make bug NAME=...  trains with and without one"
	@echo "make parity      the same steps in 16 layouts of 8 ranks: loss and norm to 9 digits, bytes by axis, memory"
	@echo "make reference   the worst errors against PyTorch and transformers, a row a model"
	@echo "make pictures    the README's pictures of run.html and of three runs, by headless Chromium"
	@echo "make docs        what README.md and lessons/*.md show of it, anew (make docs-check: are they still true?)"
	@echo "make exercise NAME=ddp   lines of the source to write again, in a copy; make grade NAME=ddp   are you there?"
	@echo "make bench       a step next to its own matrix products, speed and memory of its pieces (BENCH='124M-B4-T64 bf16')"
	@echo "make kernel-report   each kernel: blocks, waves, registers, bytes needed and moved, without a GPU (ARCHS=all)"
	@echo "make copytest    each header compiles, links and runs in a stranger's program"
	@echo "make gpu-check   on a GPU, in nine minutes: the suites, every kernel against a copy, whole steps; writes gpu/*.json"
	@echo "make apart       device memory that the host can't touch, without a GPU: a run in every layout, each command"
	@echo "make fuzz        libFuzzer on every parser (FUZZ_SECONDS=60)"
	@echo "make kill-test   50 kills of a run that saves each step: nothing that was saved is lost"
	@echo "make test-long   all of the above and more, in parts (test/long.sh --list; PART='fuzz clang' or PART=1/3)"
	@echo "make clean"

-include $(shell find build -name '*.d' 2>/dev/null)
