// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/plugins.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <dlfcn.h>
#include <strings.h>

namespace lockstep::emulator {
namespace {

std::atomic<int> wanted_events = 0;  // one mask for all communicators, as in NCCL

// Null without such a plugin. Read once, like in NCCL.
template <typename Table>
const Table* find_table(const char* variable, const char* symbol) {
  const char* value = std::getenv(variable);
  if (value == nullptr || strcasecmp(value, kPluginOfProgram) != 0) return nullptr;
  void* const program = dlopen(nullptr, RTLD_NOW | RTLD_LOCAL);
  return static_cast<const Table*>(dlsym(program, symbol));
}

const NcclTuner* tuner() {
  static const auto* const table = find_table<NcclTuner>(kTunerVariable, "ncclTunerPlugin_v5");
  return table;
}

const NcclProfiler* profiler() {
  static const auto* const table = find_table<NcclProfiler>(kProfilerVariable, "ncclProfiler_v5");
  return table;
}

struct Function {
  int number;  // NCCL's
  const char* name;
};

Function function_of(Kind kind) {
  switch (kind) {
    case Kind::broadcast:
      return {0, "Broadcast"};
    case Kind::reduce:
      return {1, "Reduce"};
    case Kind::all_gather:
      return {2, "AllGather"};
    case Kind::reduce_scatter:
      return {3, "ReduceScatter"};
    default:
      return {4, "AllReduce"};
  }
}

std::uint64_t device_timer() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace

void Plugins::begin(std::uint64_t communicator, const char* name, int nodes, int ranks, int rank) {
  begun_ = true;
  if (profiler() != nullptr) {
    int events = wanted_events;
    profiler()->init(&profiler_, communicator, &events, name, nodes, ranks, rank, nullptr);
    wanted_events = events;
  }
  if (tuner() != nullptr)
    tuner()->init(&tuner_, communicator, static_cast<std::size_t>(ranks), static_cast<std::size_t>(nodes),
                  nullptr, nullptr, nullptr);
}

void Plugins::end() {
  if (!std::exchange(begun_, false)) return;
  if (profiler() != nullptr && profiler_ != nullptr) profiler()->finalize(profiler_);
  if (tuner() != nullptr) tuner()->finalize(tuner_);
}

int Plugins::blocks(const Operation& operation, int ranks, int most) const {
  const Call& call = operation.call;
  if (tuner() == nullptr || call.kind == Kind::transfers || call.symmetric()) return most;
  const bool of_each = call.kind == Kind::all_gather || call.kind == Kind::reduce_scatter;
  const std::size_t bytes =
      call.count * size_of_type(call.type) * static_cast<std::size_t>(of_each ? ranks : 1);
  constexpr int kAlgorithms = 7, kProtocols = 3;
  float costs[kAlgorithms][kProtocols];
  for (auto& algorithm : costs)
    for (float& cost : algorithm) cost = -1;  // not offered
  constexpr int kRing = 1, kSimple = 2;
  costs[kRing][kSimple] = 1;
  int channels = 0;
  const ncclResult_t status =
      tuner()->choose(tuner_, function_of(call.kind).number, bytes, 1, reinterpret_cast<float**>(costs),
                      kAlgorithms, kProtocols, call.registered ? 1 : 0, &channels);
  return status != ncclSuccess || channels == 0 ? most : std::min(channels, most);
}

// NCCL 2.28 reports no kernels on symmetric windows and no copy engines.
Plugins::Events::Events(const Plugins& plugins, const Operation& operation, int blocks, int rank) {
  const Call& call = operation.call;
  if (profiler() == nullptr || call.kind == Kind::transfers || call.symmetric()) return;
  if ((wanted_events & kNcclCollective) == 0) return;
  NcclEvent event{};
  event.type = kNcclCollective;
  event.rank = rank;
  event.collective.function = function_of(call.kind).name;
  event.collective.send = operation.send;
  event.collective.recv = operation.recv;
  event.collective.count = call.count;
  event.collective.type = name_of_type(call.type);
  event.collective.channels = static_cast<std::uint8_t>(blocks);
  event.collective.algorithm = "RING";
  event.collective.protocol = "SIMPLE";
  void* collective = nullptr;
  profiler()->start(plugins.profiler_, &collective, &event);
  if (collective != nullptr) profiler()->stop(collective);
  if ((wanted_events & kNcclKernelChannel) == 0) return;
  for (int block = 0; block < blocks; ++block) {
    NcclEvent begin{};
    begin.type = kNcclKernelChannel;
    begin.parent = collective;
    begin.kernel.channel = static_cast<std::uint8_t>(block);
    begin.kernel.begin_ns = device_timer();
    profiler()->start(plugins.profiler_, &blocks_.emplace_back(nullptr), &begin);
  }
}

Plugins::Events::~Events() {
  for (void* block : blocks_) {
    if (block == nullptr) continue;
    NcclEventState state{.kernel = {.end_ns = device_timer()}};
    profiler()->record(block, kNcclKernelChannelStop, &state);
    profiler()->stop(block);
  }
}

}  // namespace lockstep::emulator
