// SPDX-License-Identifier: Apache-2.0
//
// KernelTimes: when the kernels of a communicator's collectives began and ended on the device, from NCCL's
// profiler (comm.kernel_times), and which algorithm NCCL chose. NCCL 2.28 does not report kernels on
// symmetric windows and copy engines, and reports no number of thread blocks for networks that add (CollNet).
// Sends and receives (all_to_all) are ignored. Collectives must be enqueued, not replayed: where both
// alternate, NCCL loses count of its kernels (2.28 to 2.30).
//
// NCCL reports a collective without a number. It belongs to the oldest expected one of the same kind with the
// same memory; older ones were not reported.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "comm/collective.h"
#include "comm/nccl/plugins.h"

namespace lockstep {

class KernelTimes {
 public:
  enum class Moment { began, ended };
  // Called by NCCL's threads: the first thread block of the collective has begun, or the last one has ended.
  using Listener = std::function<void(std::uint64_t sequence, Moment moment)>;

  // Collectives that NCCL ran in the same way.
  struct Way {
    CollectiveKind kind = CollectiveKind::barrier;
    std::size_t bytes = 0;  // as the collective's count
    std::string algorithm;  // NCCL's names, such as "RING" and "SIMPLE"
    std::string protocol;
    int ctas = 0;

    auto operator<=>(const Way&) const = default;
  };
  struct Sums {
    std::int64_t times = 0;
    double seconds = 0;
    double least = 0;
    double most = 0;
  };

  KernelTimes() = default;
  KernelTimes(const KernelTimes&) = delete;
  KernelTimes& operator=(const KernelTimes&) = delete;

  // NCCL reports the next communicator that this thread makes to `times`, until the scope ends.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<KernelTimes> times);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
  // True if NCCL uses this.
  bool used() const;

  // An earlier listener is not called after this. Null: no listener.
  void listen(Listener listener);
  // The collective is enqueued next.
  void expect(const Collective& collective);

  std::map<Way, Sums> sums() const;
  // Text for the oldest collective whose kernel has begun and not ended: "the kernel of all_reduce 17 .. has
  // begun, 2 of 8 thread blocks have ended"; empty: there is none.
  std::string describe_running() const;

 private:
  friend struct ProfilerFunctions;

  struct Kernel {
    KernelTimes* owner = nullptr;
    Collective collective;
    Way way;
    int begun = 0;  // thread blocks
    int ended = 0;
    std::uint64_t first_ns = 0;
    std::uint64_t last_ns = 0;
  };

  // Null if the collective was not expected.
  Kernel* start(const NcclEvent& event);
  void begin_channel(Kernel& kernel, std::uint64_t at_ns);
  void end_channel(Kernel& kernel, std::uint64_t at_ns);
  void notify(const Kernel& kernel, Moment moment) const;

  static constexpr std::size_t kKept = 1024;  // collectives that are under way at the same time, at most
  mutable std::mutex mutex_;
  bool used_ = false;
  Listener listener_;
  std::array<Kernel, kKept> kernels_;
  std::size_t next_ = 0;
  std::deque<Collective> expected_;  // not reported yet
  std::map<Way, Sums> sums_;
};

// "all_reduce of 26214400 bytes: RING SIMPLE, 8 thread blocks, 60 times, 1.21 ms (1.1 to 3.02)"
std::string describe(const KernelTimes::Way& way, const KernelTimes::Sums& sums);

}  // namespace lockstep
