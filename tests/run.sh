#!/usr/bin/env bash
# Installs packages like launch/quickstart.sh, builds, and runs the tests. A word selects another check:
#   tests/run.sh          all tests except those of tests/nightly.sh, in an optimised build; with
#                         LOCKSTEP_PEER_PYTHON also the live comparison with PyTorch
#   tests/run.sh asan     the unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   tests/run.sh tsan     the unit tests under ThreadSanitizer
#                         Both include the emulated device if its sources or CUDA's have changed since they
#                         last passed.
#   tests/run.sh cuda     compile and link the libraries, the program and the tests of the CUDA backend, and
#                         plan every network's convolutions for H200 and A100; tests that need a GPU are
#                         skipped without one
#   tests/run.sh fuzz     fuzz parsers of untrusted input, 20 seconds per target (a second word sets the seconds)
#   tests/run.sh format   clang-format, without changing anything
# Words after cpu, asan, tsan or cuda are passed to ctest: tests/run.sh cpu -R NAME, tests/run.sh asan
# --rerun-failed. A last word "list" becomes -N, which lists the tests without running them.
set -euo pipefail
more_packages=(libgtest-dev libgloo-dev clang-format binutils ccache iproute2 protobuf-compiler python3 python3-pip strace xz-utils libhdf5-dev
  munge slurmctld slurmd slurm-client)
# With LOCKSTEP_TEST_CLIENTS=1 other programs read a run's files: a browser its page, TensorBoard (below) its
# events. Installing them takes minutes.
[ -z "${LOCKSTEP_TEST_CLIENTS:-}" ] || more_packages+=(chromium)
# clang has libFuzzer; its runtime libraries are a separate package.
[ "${1:-}" != fuzz ] || more_packages+=(clang libclang-rt-dev)
source "$(dirname "${BASH_SOURCE[0]}")/../launch/setup.sh"

what=${1:-cpu}

# The CUDA build compiles most of the CPU build's files again, and a second clone all of them. With paths
# relative to this folder, ccache reuses their objects.
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

# run_tests PRESET [OPTION ..]: runs the tests and writes results and times to build/tests_PRESET.xml. Two at
# once per core (fewer with little memory), because many tests mostly wait.
run_tests() {
  local options=("${@:2}")
  [ "${*: -1}" != list ] || options[-1]=-N
  ctest --preset "$1" --no-tests=error -j $((2 * jobs)) --output-junit "$PWD/build/tests_$1.xml" "${options[@]}"
}

# Runs tests with the label "timing" up to three times each. Prints and counts every failed run.
run_timing_tests() {
  local log=$PWD/build/timing.log
  ctest --preset cpu -L timing --no-tests=error -j 1 --repeat until-pass:3 --output-junit "$PWD/build/tests_timing.xml" | tee "$log"
  local result=${PIPESTATUS[0]}
  echo "timing tests: $(grep -c 'Test *#.*\*\*\*' "$log" || true) runs of them failed or were skipped"
  return "$result"
}

# build PRESET TARGET [OPTION ..]: configures and builds, in unity batches, which compile shared headers once.
# For repeated edits of one file, configure with -DCMAKE_UNITY_BUILD=OFF.
build() (
  # Keeps a build folder of launch/quickstart.sh without ccache: adding ccache would rebuild all of it.
  if [ -f "build/$1/CMakeCache.txt" ] && ! grep -q COMPILER_LAUNCHER "build/$1/CMakeCache.txt"; then
    unset CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CUDA_COMPILER_LAUNCHER
  fi
  cmake --preset "$1" -DLOCKSTEP_TESTS=ON -DCMAKE_UNITY_BUILD=ON -DLOCKSTEP_WERROR="${LOCKSTEP_WERROR:-OFF}" "${@:3}" >/dev/null
  cmake --build --preset "$1" --target "$2"
)

# sanitized PRESET TARGET [OPTION ..]: builds and runs tests under sanitizers. The tests of the emulated
# device take a quarter of the time. They run only if the hash of its sources and CUDA's differs from
# tests/sanitizers/PRESET.passed, which a passed run without options writes, to be committed.
# LOCKSTEP_EMULATED_DEVICE=ON runs them always. Where git does not list the sources, they run and nothing is
# written.
sanitized() {
  local passed=tests/sanitizers/$1.passed emulated=${LOCKSTEP_EMULATED_DEVICE:-OFF} sources
  # Without the tests of whole programs, which sanitizers do not run.
  sources=$(git ls-files -- tests/cuda_emulator core/cuda kernels/cuda ':(glob)kernels/*.h' comm/nccl \
    tests/launch/train/cuda_trainer_test.cpp ':(glob)tests/kernels/typed_*' ':(glob)tests/kernels/affine_reference*' ':!*.md' \
    ':!tests/cuda_emulator/emulated_*_test.cpp' ':!tests/cuda_emulator/device_program_test.cpp' |
    LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1) || sources=
  [ -n "$sources" ] && [ "$(cat "$passed" 2>/dev/null)" = "$sources" ] || emulated=ON
  build "$1" "$2" -DLOCKSTEP_EMULATED_DEVICE="$emulated"
  run_tests "$1" "${@:3}"
  [ $emulated = OFF ] || [ -z "$sources" ] || [ $# -gt 2 ] || echo "$sources" >"$passed"
}

case $what in
  cpu)
    build cpu all -DLOCKSTEP_BENCHMARKS=ON
    export LOCKSTEP_TENSORBOARD=$PWD/build/tensorboard LOCKSTEP_PROMETHEUS=$PWD/build/prometheus
    [ -d "$LOCKSTEP_PROMETHEUS/prometheus_client" ] ||
      python3 -m pip install -q --target "$LOCKSTEP_PROMETHEUS" prometheus_client==0.26.0 ||
      echo "Left out: what Prometheus' parser reads, because it cannot be installed" >&2
    [ -z "${LOCKSTEP_TEST_CLIENTS:-}" ] || [ -d "$LOCKSTEP_TENSORBOARD/torch_tb_profiler" ] ||
      python3 -m pip install -q --target "$LOCKSTEP_TENSORBOARD" tensorboard==2.21.0 torch-tb-profiler==0.4.3 \
        pandas==3.1.1 jsonschema==4.26.0 ||
      echo "Left out: what TensorBoard, its plugin torch-tb-profiler and Perfetto's schema read, because they cannot be installed" >&2
    # Compares with PyTorch only if it is available; golden_test compares with files of PyTorch. Without
    # further words, tests/nightly.sh runs the long tests, and tests that depend on timing run alone, after
    # the others.
    without=()
    [ -n "${LOCKSTEP_PEER_PYTHON:-}" ] || without+=(slow)
    [ $# -gt 1 ] || without+=(nightly timing)
    failed=0
    run_tests cpu ${without[@]+-LE "$(IFS='|'; echo "${without[*]}")"} "${@:2}" || failed=1
    [ $# -gt 1 ] || run_timing_tests || failed=1
    exit $failed
    ;;
  asan) sanitized asan unit_tests "${@:2}" ;;
  tsan) sanitized tsan threaded_tests "${@:2}" ;;
  cuda)
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    if [ ! -x "$nvcc" ]; then
      echo "Skipped: the CUDA build, because nvcc is not installed"
      exit 0
    fi
    export CUDACXX=$nvcc
    # kernels_sass_test needs cuobjdump, which some toolkits lack.
    tools=$PWD/build/cuda_tools
    if ! command -v cuobjdump >/dev/null && [ ! -x "$(dirname "$nvcc")/cuobjdump" ]; then
      [ -x "$tools/nvidia/cu13/bin/cuobjdump" ] ||
        python3 -m pip install -q --no-deps --target "$tools" nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37 ||
        echo "Left out: kernels_sass_test, because cuobjdump cannot be installed" >&2
      export PATH=$PATH:$tools/nvidia/cu13/bin
    fi
    build cuda cuda_tests
    build/cuda/bin/lockstep info
    run_tests cuda "${@:2}"
    ;;
  fuzz)
    CXXFLAGS='' build fuzz all  # clang does not accept GCC's flags (launch/setup.sh)
    printf '%s\n' config manifest kernel_cache safetensors image_folder idx cifar csv records containers watch metrics |
      xargs -P "$jobs" -I TARGET tests/fuzz/run.sh TARGET "${2:-20}"
    ;;
  format)
    git ls-files '*.h' '*.cpp' '*.cu' | xargs clang-format --dry-run --Werror
    ;;
  *)
    echo "tests/run.sh: unknown check \"$what\"; allowed are cpu, asan, tsan, cuda, fuzz, format" >&2
    exit 64
    ;;
esac
