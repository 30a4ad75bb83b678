#!/usr/bin/env bash
# Sets up like launch/quickstart.sh, builds, and runs every test. One word chooses another check:
#   tests/run.sh          all tests, optimised build; the live comparison with PyTorch where LOCKSTEP_PEER_PYTHON names one
#   tests/run.sh asan     the unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   tests/run.sh tsan     the unit tests under ThreadSanitizer
#   tests/run.sh cuda     compile and link the libraries, the program and the tests of the CUDA backend, plan every network's
#                         convolutions for H200 and A100; tests that need a GPU skip without one
#   tests/run.sh fuzz     fuzz what reads foreign bytes, 20 seconds for each target, or as many as a second word says
#   tests/run.sh format   clang-format, without changing anything
set -euo pipefail
more_packages=(libgtest-dev libgloo-dev clang-format binutils ccache iproute2 protobuf-compiler python3 python3-pip strace xz-utils libhdf5-dev
  munge slurmctld slurmd slurm-client)
# What a run leaves for others is looked at by them: its page by a browser, its events by TensorBoard (below).
[ "${1:-cpu}" != cpu ] || more_packages+=(chromium)
# clang brings libFuzzer, and its runtime libraries are a package of their own.
[ "${1:-}" != fuzz ] || more_packages+=(clang libclang-rt-dev)
source "$(dirname "${BASH_SOURCE[0]}")/../launch/setup.sh"

what=${1:-cpu}
# nproc takes OMP_NUM_THREADS for the number of cores, which one of the checks sets to 1.
cores=$(env -u OMP_NUM_THREADS nproc)
sanitizers=$PWD/tests/sanitizers

# The CUDA build compiles most of what the CPU's does, and a second clone all of it: with paths relative to this folder the
# compiler's cache knows both.
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# Tests run side by side: an OpenMP thread that spins while it waits takes the core of one that computes.
export OMP_WAIT_POLICY=passive

# build PRESET TARGET [OPTION ..]. Eight files at a time: what they share is compiled once.
# Who edits one file again and again configures with -DCMAKE_UNITY_BUILD=OFF.
build() {
  cmake --preset "$1" -DLOCKSTEP_TESTS=ON -DCMAKE_UNITY_BUILD=ON "${@:3}" >/dev/null  # the quickstart: without tests
  cmake --build --preset "$1" --target "$2"
}

case $what in
  cpu)
    build cpu all -DLOCKSTEP_BENCHMARKS=ON
    export LOCKSTEP_TENSORBOARD=$PWD/build/tensorboard
    [ -d "$LOCKSTEP_TENSORBOARD/torch_tb_profiler" ] ||
      python3 -m pip install -q --target "$LOCKSTEP_TENSORBOARD" tensorboard torch-tb-profiler 'pandas<4' jsonschema ||
      echo "Left out: what TensorBoard, its plugin torch-tb-profiler and Perfetto's schema read, because they cannot be installed" >&2
    # The live comparison with PyTorch only where there is one; golden_test compares with files that PyTorch made.
    without=()
    [ -n "${LOCKSTEP_PEER_PYTHON:-}" ] || without=(-LE slow)
    ctest --preset cpu --no-tests=error -j "$cores" "${without[@]}"
    ;;
  asan)
    build asan unit_tests
    export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    export LSAN_OPTIONS=suppressions=$sanitizers/lsan.supp
    # While it makes kernels for AMX, oneDNN 2.6.3 reads behind a block of its own.
    export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16
    ctest --preset asan --no-tests=error -L unit -j "$cores"
    ;;
  tsan)
    build tsan threaded_tests
    # libgomp's barriers are invisible to ThreadSanitizer: one thread per team leaves only our own threads to judge.
    export TSAN_OPTIONS=suppressions=$sanitizers/tsan.supp:halt_on_error=1 OMP_NUM_THREADS=1
    # Whether what races nowhere learns is judged by the optimised build, in a fourteenth of the time.
    export GTEST_FILTER=-Gossip.RanksLearnTogether:DelayedGradients.BearTheLearningRateOfGradientsInTime
    ctest --preset tsan --no-tests=error -L threaded -j "$cores"
    ;;
  cuda)
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    if [ ! -x "$nvcc" ]; then
      echo "Skipped: the CUDA build, because there is no nvcc here"
      exit 0
    fi
    export CUDACXX=$nvcc
    # cuobjdump reads the machine code that kernels_sass_test looks at; not every toolkit brings it.
    tools=$PWD/build/cuda_tools
    if ! command -v cuobjdump >/dev/null && [ ! -x "$(dirname "$nvcc")/cuobjdump" ]; then
      [ -x "$tools/nvidia/cu13/bin/cuobjdump" ] ||
        python3 -m pip install -q --no-deps --target "$tools" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm ||
        echo "Left out: kernels_sass_test, because cuobjdump cannot be installed" >&2
      export PATH=$PATH:$tools/nvidia/cu13/bin
    fi
    build cuda cuda_tests
    build/cuda/bin/lockstep info
    ctest --preset cuda -L cuda --no-tests=error -j "$cores"
    ;;
  fuzz)
    build fuzz all
    printf '%s\n' config manifest kernel_cache safetensors image_folder idx cifar csv records containers |
      xargs -P "$cores" -I TARGET tests/fuzz/run.sh TARGET "${2:-20}"
    ;;
  format)
    git ls-files '*.h' '*.cpp' '*.cu' | xargs clang-format --dry-run --Werror
    ;;
  *)
    echo "tests/run.sh: unknown check \"$what\"; allowed are cpu, asan, tsan, cuda, fuzz, format" >&2
    exit 64
    ;;
esac
