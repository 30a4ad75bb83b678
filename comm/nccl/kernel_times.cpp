// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/kernel_times.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace lockstep {
namespace {

// NCCL makes a communicator on the thread that asks for it.
thread_local std::shared_ptr<KernelTimes> of_next_communicator;

// NCCL's name; empty: NCCL reports no such collective.
std::string_view function_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::barrier:
      return "AllReduce";
    case CollectiveKind::reduce_scatter:
      return "ReduceScatter";
    case CollectiveKind::all_gather:
      return "AllGather";
    case CollectiveKind::broadcast:
      return "Broadcast";
    case CollectiveKind::all_to_all:
      return {};
  }
  return {};
}

}  // namespace

KernelTimes::Scope::Scope(std::shared_ptr<KernelTimes> times) { of_next_communicator = std::move(times); }

KernelTimes::Scope::~Scope() { of_next_communicator.reset(); }

bool KernelTimes::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void KernelTimes::listen(Listener listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void KernelTimes::close() { listen(nullptr); }

void KernelTimes::expect(const Collective& collective) {
  const std::string_view function = function_of(collective.kind);
  if (function.empty()) return;
  const std::lock_guard lock(mutex_);
  if (!used_) return;
  const auto found = std::ranges::find_if(early_, [&](const Kernel* kernel) {
    return kernel->recv == collective.recv && kernel->function == function;
  });
  if (found == early_.end()) {
    if (expected_.size() == kKept) expected_.pop_front();  // NCCL did not report it
    expected_.push_back(collective);
    return;
  }
  Kernel& kernel = **found;
  early_.erase(found);
  identify(kernel, collective);
}

void KernelTimes::identify(Kernel& kernel, const Collective& collective) {
  kernel.collective = collective;
  kernel.way.kind = collective.kind;
  kernel.way.bytes = collective.count * size_of(collective.dtype);
  if (kernel.begun > 0) tell(kernel, Moment::began);
  if (kernel.begun > 0 && kernel.ended == kernel.way.ctas) finish(kernel);
}

void KernelTimes::tell(const Kernel& kernel, Moment moment) const {
  if (listener_) listener_(kernel.collective.sequence, moment);
}

void KernelTimes::finish(const Kernel& kernel) {
  tell(kernel, Moment::ended);
  const double seconds = static_cast<double>(kernel.last_ns - kernel.first_ns) * 1e-9;
  Sums& sums = sums_[kernel.way];
  sums.least = sums.times == 0 ? seconds : std::min(sums.least, seconds);
  sums.most = std::max(sums.most, seconds);
  sums.seconds += seconds;
  ++sums.times;
}

KernelTimes::Kernel* KernelTimes::start(const NcclEvent& event) {
  const std::lock_guard lock(mutex_);
  Kernel& kernel = kernels_[next_++ % kKept];
  std::erase(early_, &kernel);
  kernel = {.owner = this,
            .collective = {},
            .function = event.collective.function,
            .recv = event.collective.recv,
            .way = {.algorithm = event.collective.algorithm,
                    .protocol = event.collective.protocol,
                    .ctas = event.collective.channels}};
  const auto found = std::ranges::find_if(expected_, [&](const Collective& collective) {
    return collective.recv == kernel.recv && function_of(collective.kind) == kernel.function;
  });
  if (found == expected_.end()) {
    early_.push_back(&kernel);
  } else {
    const Collective collective = *found;
    expected_.erase(found);
    identify(kernel, collective);
  }
  return &kernel;
}

void KernelTimes::begin_channel(Kernel& kernel, std::uint64_t at_ns) {
  const std::lock_guard lock(mutex_);
  kernel.first_ns = kernel.begun == 0 ? at_ns : std::min(kernel.first_ns, at_ns);
  if (++kernel.begun == 1 && kernel.collective.sequence > 0) tell(kernel, Moment::began);
}

void KernelTimes::end_channel(Kernel& kernel, std::uint64_t at_ns) {
  const std::lock_guard lock(mutex_);
  kernel.last_ns = std::max(kernel.last_ns, at_ns);
  if (++kernel.ended == kernel.way.ctas && kernel.collective.sequence > 0) finish(kernel);
}

std::map<KernelTimes::Way, KernelTimes::Sums> KernelTimes::sums() const {
  const std::lock_guard lock(mutex_);
  return sums_;
}

std::string KernelTimes::describe_running() const {
  const std::lock_guard lock(mutex_);
  const Kernel* oldest = nullptr;
  for (const Kernel& kernel : kernels_) {
    if (kernel.begun == 0 || kernel.ended == kernel.way.ctas || kernel.collective.sequence == 0) continue;
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
                           NcclLogger) {
    *context = nullptr;
    if (of_next_communicator == nullptr) return ncclSuccess;
    {
      const std::lock_guard lock(of_next_communicator->mutex_);
      of_next_communicator->used_ = true;
    }
    *context = new Context(of_next_communicator);
    *events = kNcclCollective | kNcclKernelChannel;
    return ncclSuccess;
  }

  static ncclResult_t start(void* context, void** handle, NcclEvent* event) {
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

  static ncclResult_t stop(void*) { return ncclSuccess; }

  static ncclResult_t record(void* handle, int state, NcclEventState* values) {
    if (handle == nullptr || state != kNcclKernelChannelStop) return ncclSuccess;
    auto& kernel = *static_cast<KernelTimes::Kernel*>(handle);
    kernel.owner->end_channel(kernel, values->kernel.end_ns);
    return ncclSuccess;
  }

  static ncclResult_t finalize(void* context) {
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
