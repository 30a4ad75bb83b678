// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/kernel_times.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace lockstep {
namespace {

// NCCL makes a communicator on the thread that asks for it.
thread_local std::shared_ptr<KernelTimes> times_of_next_communicator;

// NCCL's name; empty: not of interest. NCCL reports an all_to_all as sends and receives.
std::string_view function_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "AllReduce";
    case CollectiveKind::reduce_scatter:
      return "ReduceScatter";
    case CollectiveKind::all_gather:
      return "AllGather";
    case CollectiveKind::broadcast:
      return "Broadcast";
    case CollectiveKind::barrier:
    case CollectiveKind::all_to_all:
      return {};
  }
  return {};
}

}  // namespace

KernelTimes::Scope::Scope(std::shared_ptr<KernelTimes> times) {
  times_of_next_communicator = std::move(times);
}

KernelTimes::Scope::~Scope() { times_of_next_communicator.reset(); }

bool KernelTimes::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void KernelTimes::listen(Listener listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void KernelTimes::expect(const Collective& collective) {
  const std::lock_guard lock(mutex_);
  if (!used_ || function_of(collective.kind).empty()) return;
  if (expected_.size() == kKept) expected_.pop_front();  // NCCL did not report it
  expected_.push_back(collective);
}

void KernelTimes::notify(const Kernel& kernel, Moment moment) const {
  if (listener_) listener_(kernel.collective.sequence, moment);
}

KernelTimes::Kernel* KernelTimes::start(const NcclEvent& event) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(expected_, [&](const Collective& collective) {
    return collective.recv == event.collective.recv &&
           function_of(collective.kind) == event.collective.function;
  });
  if (found == expected_.end()) return nullptr;
  const Collective collective = *found;
  expected_.erase(expected_.begin(), found + 1);
  if (event.collective.channels == 0) return nullptr;
  Kernel& kernel = kernels_[next_++ % kKept];
  kernel = {.owner = this,
            .collective = collective,
            .way = {.kind = collective.kind,
                    .bytes = collective.count * size_of(collective.dtype),
                    .algorithm = event.collective.algorithm,
                    .protocol = event.collective.protocol,
                    .ctas = event.collective.channels}};
  return &kernel;
}

void KernelTimes::begin_channel(Kernel& kernel, std::uint64_t at_ns) {
  const std::lock_guard lock(mutex_);
  kernel.first_ns = kernel.begun == 0 ? at_ns : std::min(kernel.first_ns, at_ns);
  if (++kernel.begun == 1) notify(kernel, Moment::began);
}

void KernelTimes::end_channel(Kernel& kernel, std::uint64_t at_ns) {
  const std::lock_guard lock(mutex_);
  kernel.last_ns = std::max(kernel.last_ns, at_ns);
  if (++kernel.ended < kernel.way.ctas) return;
  notify(kernel, Moment::ended);
  const double seconds = static_cast<double>(kernel.last_ns - kernel.first_ns) * 1e-9;
  Sums& sums = sums_[kernel.way];
  sums.least = sums.times == 0 ? seconds : std::min(sums.least, seconds);
  sums.most = std::max(sums.most, seconds);
  sums.seconds += seconds;
  ++sums.times;
}

std::map<KernelTimes::Way, KernelTimes::Sums> KernelTimes::sums() const {
  const std::lock_guard lock(mutex_);
  return sums_;
}

std::string KernelTimes::describe_running() const {
  const std::lock_guard lock(mutex_);
  const Kernel* oldest = nullptr;
  for (const Kernel& kernel : kernels_) {
    if (kernel.begun == 0 || kernel.ended == kernel.way.ctas) continue;
    if (oldest == nullptr || kernel.collective.sequence < oldest->collective.sequence) oldest = &kernel;
  }
  if (oldest == nullptr) return {};
  return fmt::format("the kernel of {} has begun, {} of {} thread blocks have ended",
                     lockstep::describe(oldest->collective), oldest->ended, oldest->way.ctas);
}

std::string describe(const KernelTimes::Way& way, const KernelTimes::Sums& sums) {
  return fmt::format("{} of {} bytes: {} {}, {} thread block{}, {} times, {:.3g} ms ({:.3g} to {:.3g})",
                     name_of(way.kind), way.bytes, way.algorithm, way.protocol, way.ctas,
                     way.ctas == 1 ? "" : "s", sums.times,
                     1e3 * sums.seconds / static_cast<double>(sums.times), 1e3 * sums.least, 1e3 * sums.most);
}

// The functions of NCCL's profiler. A context is a pointer to a shared KernelTimes, or null. The mask of
// events is one for all communicators of the process.
struct ProfilerFunctions {
  using Context = std::shared_ptr<KernelTimes>;

  static ncclResult_t init(void** context, std::uint64_t, int* events, const char*, int, int, int,
                           NcclLogger) noexcept {
    *context = nullptr;
    if (times_of_next_communicator == nullptr) return ncclSuccess;
    {
      const std::lock_guard lock(times_of_next_communicator->mutex_);
      times_of_next_communicator->used_ = true;
    }
    *context = new Context(times_of_next_communicator);
    *events = kNcclCollective | kNcclKernelChannel;
    return ncclSuccess;
  }

  static ncclResult_t start(void* context, void** handle, NcclEvent* event) noexcept {
    *handle = nullptr;
    if (context == nullptr) return ncclSuccess;
    if (event->type == kNcclCollective) {
      *handle = (*static_cast<Context*>(context))->start(*event);
    } else if (event->type == kNcclKernelChannel && event->parent != nullptr) {
      auto& kernel = *static_cast<KernelTimes::Kernel*>(event->parent);
      kernel.owner->begin_channel(kernel, event->kernel.begin_ns);
      *handle = &kernel;
    }
    return ncclSuccess;
  }

  static ncclResult_t stop(void*) noexcept { return ncclSuccess; }

  static ncclResult_t record(void* handle, int state, NcclEventState* values) noexcept {
    if (handle == nullptr || state != kNcclKernelChannelStop) return ncclSuccess;
    auto& kernel = *static_cast<KernelTimes::Kernel*>(handle);
    kernel.owner->end_channel(kernel, values->kernel.end_ns);
    return ncclSuccess;
  }

  static ncclResult_t finalize(void* context) noexcept {
    delete static_cast<Context*>(context);
    return ncclSuccess;
  }
};

}  // namespace lockstep

const lockstep::NcclProfiler ncclProfiler_v5 = {.name = "lockstep",
                                                .init = lockstep::ProfilerFunctions::init,
                                                .start = lockstep::ProfilerFunctions::start,
                                                .stop = lockstep::ProfilerFunctions::stop,
                                                .record = lockstep::ProfilerFunctions::record,
                                                .finalize = lockstep::ProfilerFunctions::finalize};
