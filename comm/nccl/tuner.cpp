// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/tuner.h"

#include <algorithm>
#include <span>
#include <utility>

#include "comm/nccl/plugins.h"

namespace lockstep {
namespace {

// NCCL makes a communicator, and chooses for a collective, on the thread that asks for it.
thread_local int cta_limit = 0;
thread_local bool used = false;

ncclResult_t init(void**, std::uint64_t, std::size_t, std::size_t, NcclLogger, void*, void*) noexcept {
  used = true;
  return ncclSuccess;
}

// NCCL takes the algorithm with the least cost; a negative cost: it does not offer the algorithm. It checks a
// tuner's number against its channels for rings and trees only.
bool takes_ring_or_tree(std::span<const float> costs, int protocols) {
  constexpr int kTree = 0, kRing = 1;
  int least = -1;
  for (int i = 0; i < std::ssize(costs); ++i) {
    const auto cost = [&](int at) { return costs[static_cast<std::size_t>(at)]; };
    if (cost(i) >= 0 && (least < 0 || cost(i) < cost(least))) least = i;
  }
  return least >= 0 && (least / protocols == kTree || least / protocols == kRing);
}

// costs: not pointers to rows, but a table of algorithms x protocols.
ncclResult_t choose(void*, int, std::size_t bytes, int, float** costs, int algorithms, int protocols, int,
                    int* channels) noexcept {
  if (cta_limit == 0) return ncclSuccess;
  const std::span<const float> table(reinterpret_cast<const float*>(costs),
                                     static_cast<std::size_t>(algorithms * protocols));
  if (takes_ring_or_tree(table, protocols)) *channels = limited_ctas(bytes, cta_limit);
  return ncclSuccess;
}

ncclResult_t finalize(void*) noexcept { return ncclSuccess; }

}  // namespace

CtaLimit::CtaLimit(int most) : before_(std::exchange(cta_limit, most)) {}

CtaLimit::~CtaLimit() { cta_limit = before_; }

int limited_ctas(std::size_t bytes, int most) {
  constexpr std::size_t kBytesOfBlock = 32 << 10;
  return static_cast<int>(std::clamp<std::size_t>(bytes / kBytesOfBlock, 1, static_cast<std::size_t>(most)));
}

bool take_tuner_use() { return std::exchange(used, false); }

}  // namespace lockstep

const lockstep::NcclTuner ncclTunerPlugin_v5 = {
    .name = "lockstep", .init = lockstep::init, .choose = lockstep::choose, .finalize = lockstep::finalize};
