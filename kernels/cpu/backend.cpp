// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/backend.h"

#include "core/error.h"
#include "core/system/processor_name.h"
#include "core/system/processor_time.h"
#include "core/system/processors.h"
#include "kernels/backend_factories.h"
#include "kernels/cpu/engine.h"

namespace lockstep {
namespace {

// The largest named set that oneDNN uses; newer sets contain these.
std::string_view isa_name() {
  if (onednn_has(dnnl::cpu_isa::avx512_core_amx)) return "AVX-512 with AMX";
  if (onednn_has(dnnl::cpu_isa::avx512_core_bf16)) return "AVX-512 with bf16";
  if (onednn_has(dnnl::cpu_isa::avx512_core)) return "AVX-512";
  if (onednn_has(dnnl::cpu_isa::avx2)) return "AVX2";
  if (onednn_has(dnnl::cpu_isa::avx)) return "AVX";
  if (onednn_has(dnnl::cpu_isa::sse41)) return "SSE4.1";
  return "an unknown instruction set";
}

}  // namespace

void CpuBackend::set_threads(int threads) { omp_set_num_threads(threads); }

std::int64_t CpuBackend::batch_multiple(DType) { return omp_get_max_threads(); }

double CpuBackend::seconds_without_core(double not_counted) {
  double seconds = 0;
#pragma omp parallel reduction(+ : seconds)
  seconds += lockstep::seconds_without_core();
  return (seconds - not_counted) / omp_get_max_threads();
}

std::string CpuBackend::describe() const {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{} with {}, own loops with {}", version.major, version.minor,
                     version.patch, isa_name(), name_of(instruction_set()));
}

// The number of our set of candidates: a new one makes kept choices out of date.
constexpr int kCandidates = 2;

std::string CpuBackend::identity() const {
  return fmt::format("{} on {}, candidates {}, {} threads", describe(), processor_name(), kCandidates,
                     omp_get_max_threads());
}

Backend& detail::cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace lockstep
