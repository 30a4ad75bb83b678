// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/configuration.h"

#include <algorithm>

#include <fmt/format.h>

#include "comm/nccl/check.h"
#include "comm/nccl/plugins.h"

// The library that is found at run time may be older than the header: calls of functions that it lacks would
// end the program.
#if NCCL_VERSION_CODE >= 22703
extern "C" {
__attribute__((weak)) ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int);
__attribute__((weak)) ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
}
#endif

namespace lockstep {
namespace {

// The first versions that have an option (NCCL's nccl.h.in by tag).
constexpr int kHasTrafficClass = 22602;
constexpr int kHasPolicies = 22703;    // CTAPolicy, nvlsCTAs, commName and windows
constexpr int kHasZeroPolicy = 22803;  // earlier versions refuse it, and have no name for it

int known(int version) { return std::min(version, NCCL_VERSION_CODE); }

}  // namespace

int nccl_library_version() {
  int version = 0;
  NCCL_CHECK(ncclGetVersion(&version));
  return version;
}

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

// NCCL refuses minCTAs without maxCTAs, so that is then NCCL's largest number of channels.
ncclConfig_t nccl_configuration(const DeviceCommunicatorOptions& options, [[maybe_unused]] const char* name,
                                [[maybe_unused]] int version) {
  constexpr int kMostChannels = 64;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (options.cga_cluster_size >= 0) config.cgaClusterSize = options.cga_cluster_size;
  if (options.min_ctas > 0) config.minCTAs = options.min_ctas;
  if (options.max_ctas > 0 || options.min_ctas > 0)
    config.maxCTAs = options.max_ctas > 0 ? options.max_ctas : kMostChannels;
#if NCCL_VERSION_CODE >= 22602
  if (options.traffic_class >= 0 && version >= kHasTrafficClass) config.trafficClass = options.traffic_class;
#endif
#if NCCL_VERSION_CODE >= 22803
  static_assert(static_cast<int>(CtaPolicy::efficiency) == NCCL_CTA_POLICY_EFFICIENCY &&
                static_cast<int>(CtaPolicy::zero) == NCCL_CTA_POLICY_ZERO);
#endif
#if NCCL_VERSION_CODE >= 22703
  if (version < kHasPolicies) return config;
  config.commName = name;
  if (options.nvls_ctas > 0) config.nvlsCTAs = options.nvls_ctas;
  const bool has_policy = options.cta_policy != CtaPolicy::zero || known(version) >= kHasZeroPolicy;
  if (options.cta_policy != CtaPolicy::standard && has_policy)
    config.CTAPolicy = static_cast<int>(options.cta_policy);  // the numbers are NCCL's
#endif
  return config;
}

std::vector<std::string> missing_in_nccl(const DeviceCommunicatorOptions& options, int version) {
  std::vector<std::string> missing;
  const auto need = [&](bool set, std::string_view setting, int needed, std::string_view instead) {
    if (!set || known(version) >= needed) return;
    const bool by_library = version < needed;
    missing.push_back(fmt::format("{} needs NCCL {}, but {} has {}: {}", setting, nccl_version_text(needed),
                                  by_library ? "the library" : "the header that Lockstep was built with",
                                  nccl_version_text(by_library ? version : NCCL_VERSION_CODE), instead));
  };
  constexpr std::string_view own = "NCCL makes its own choice";
  need(options.traffic_class >= 0, "comm.traffic_class", kHasTrafficClass, own);
  need(options.nvls_ctas > 0, "comm.nvls_ctas", kHasPolicies, own);
  need(options.cta_policy == CtaPolicy::efficiency, "comm.cta_policy = \"efficiency\"", kHasPolicies, own);
  need(options.cta_policy == CtaPolicy::zero, "comm.cta_policy = \"zero\"", kHasZeroPolicy, own);
  // Plugins do not depend on the header.
  need(options.ctas_beside_compute > 0 && version < kHasPlugins, "comm.ctas_beside_compute", kHasPlugins,
       own);
  need(options.kernel_times && version < kHasPlugins, "comm.kernel_times", kHasPlugins,
       "NCCL reports no times");
  need(options.memory == RegisteredMemory::window, "comm.gradient_memory = \"window\"", kHasPolicies,
       "gradient memory is registered without windows");
  return missing;
}

RegisteredMemory usable_memory(RegisteredMemory requested, int version) {
  const bool lacks_windows = known(version) < kHasPolicies;
  return requested == RegisteredMemory::window && lacks_windows ? RegisteredMemory::registered : requested;
}

ncclResult_t register_window([[maybe_unused]] ncclComm_t communicator, [[maybe_unused]] void* data,
                             [[maybe_unused]] std::size_t bytes, [[maybe_unused]] void** window) {
#if NCCL_VERSION_CODE >= 22703
  if (&ncclCommWindowRegister == nullptr) return ncclInvalidUsage;
  ncclWindow_t made = nullptr;
  const ncclResult_t status =
      ncclCommWindowRegister(communicator, data, bytes, &made, NCCL_WIN_COLL_SYMMETRIC);
  *window = made;
  return status;
#else
  return ncclInvalidUsage;
#endif
}

ncclResult_t deregister_window([[maybe_unused]] ncclComm_t communicator, [[maybe_unused]] void* window) {
#if NCCL_VERSION_CODE >= 22703
  if (&ncclCommWindowDeregister == nullptr) return ncclInvalidUsage;
  return ncclCommWindowDeregister(communicator, static_cast<ncclWindow_t>(window));
#else
  return ncclInvalidUsage;
#endif
}

}  // namespace lockstep
