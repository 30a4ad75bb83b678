// SPDX-License-Identifier: Apache-2.0
//
// The faults that can be injected: one class and one line of the table for each.
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/state.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "launch/program/inject/injection.h"

namespace lockstep {
namespace {

// A fault that only its rank executes, before the step.
template <void (*what)(double amount)>
class OwnFault final : public Fault {
 public:
  void before_step(FaultSite& site) override {
    if (site.here) what(site.amount);
  }
};

void kill_rank(double) { std::raise(SIGKILL); }
void stop_rank(double) {
  log::warning("an injected fault stops this rank now");
  std::raise(SIGSTOP);
}
void hang_rank(double) {
  log::warning("an injected fault blocks this rank's main thread now");
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}
void slow_down(double milliseconds) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
}
void run_out_of_memory(double) { throw std::bad_alloc(); }
void fail_rank(double) { throw Error(exit_code::failed, "an error injected by --inject fail"); }

// Existing files stay readable, but no file can grow.
void fill_disk(double) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
  CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0, "cannot limit the size of files (RLIMIT_FSIZE)");
}

std::uint64_t network_of(const char* process) {
  struct stat status = {};
  const std::string path = std::string("/proc/") + process + "/ns/net";
  return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

// Refuses the machine's own network: a user who is connected over it would lose the connection.
void take_link_down(double) {
  const std::uint64_t mine = network_of("self"), machines = network_of("1");
  if (mine == 0 || machines == 0 || mine == machines)
    throw UsageError(
        "--inject link-down: this rank uses its machine's own network, and the machine would become "
        "unreachable; start the rank in a network namespace, as tests/nodes.sh does");
  const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  CHECK(any >= 0, "cannot open a socket: {}", std::strerror(errno));
  const struct if_nameindex* list = if_nameindex();
  CHECK(list != nullptr, "cannot list the network interfaces: {}", std::strerror(errno));
  log::warning("an injected fault takes this rank's network down now");
  for (; list->if_index != 0; ++list) {
    ifreq request = {};
    std::strncpy(request.ifr_name, list->if_name, IFNAMSIZ - 1);
    if (ioctl(any, SIOCGIFFLAGS, &request) != 0 || (request.ifr_flags & IFF_LOOPBACK) != 0) continue;
    request.ifr_flags = static_cast<short>(request.ifr_flags & ~IFF_UP);
    if (ioctl(any, SIOCSIFFLAGS, &request) != 0)
      throw UsageError("--inject link-down: only root can take the network interface " +
                       std::string(request.ifr_name) + " down");
  }
  close(any);
}

// Changes the first element of tensors that all ranks share (host or device memory), on the rank of the
// fault.
class ElementChange final : public StateVisitor {
 public:
  using Takes = bool (*)(const std::string& name, std::size_t taken);
  using Change = std::function<float(const std::string& name, std::size_t taken, float value)>;
  ElementChange(const FaultSite& site, Takes takes, const Change& change)
      : here_(site.here),
        stream_(site.trainer.device(), StreamUse::compute),
        takes_(takes),
        change_(change) {}

  bool writes() const override { return true; }
  void tensor(const StateTensor& tensor, StateScope scope) override {
    if (!here_ || tensor.elements == 0 || scope != StateScope::replicated || !takes_(tensor.name, taken_))
      return;
    float value = 0;
    stream_.copy(&value, tensor.value, sizeof(value));
    stream_.synchronize();
    const float changed = change_(tensor.name, taken_++, value);
    stream_.copy(tensor.value, &changed, sizeof(changed));
    stream_.synchronize();
  }
  void value(const std::string&, StateScope, StateValue) override {}

 private:
  bool here_;
  Stream stream_;
  Takes takes_;
  const Change& change_;
  std::size_t taken_ = 0;
};

void change_elements(FaultSite& site, ElementChange::Takes takes, const ElementChange::Change& change) {
  ElementChange visitor(site, takes, change);
  site.trainer.visit_state(visitor);
}

class BitFlip final : public Fault {
 public:
  void before_step(FaultSite& site) override {
    change_elements(
        site, [](const std::string&, std::size_t taken) { return taken == 0; },
        [](const std::string&, std::size_t, float value) {
          return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1u);
        });
  }
};

// Sets biases to NaN, which makes gradients NaN; the last layer's bias is included because a ReLU may hide
// NaN from earlier layers. Restores them after the step, so that a skipped step leaves no trace. With
// train.staleness the step applies earlier gradients: the biases' momentum and average are then NaN, too.
class NanGradients final : public Fault {
 public:
  void before_step(FaultSite& site) override {
    sound_.clear();
    change_elements(site, is_of_bias, [this](const std::string& name, std::size_t, float value) {
      sound_.push_back(value);
      return name.ends_with(kBias) ? std::numeric_limits<float>::quiet_NaN() : value;
    });
  }
  void after_step(FaultSite& site) override {
    change_elements(site, is_of_bias, [this](const std::string&, std::size_t which, float value) {
      return std::isfinite(value) ? value : sound_.at(which);
    });
  }

 private:
  static constexpr std::string_view kBias = ".bias";
  // "fc1.bias", and "fc1.bias.momentum_buffer".
  static bool is_of_bias(const std::string& name, std::size_t) {
    return name.ends_with(kBias) || name.find(".bias.") != std::string::npos;
  }
  std::vector<float> sound_;
};

// Multiplies the rank's own step time (Trainer::own_seconds()) by the factor.
class SlowerSteps final : public Fault {
 public:
  void before_step(FaultSite& site) override {
    if (!site.here) return;
    const OwnSeconds own = site.trainer.own_seconds();
    const double now = std::max(own.host - slept_, own.device);
    const double step = now - std::exchange(last_, now);
    if (!std::exchange(began_, true)) return;
    const double more = (site.amount - 1) * step;
    std::this_thread::sleep_for(std::chrono::duration<double>(more));
    slept_ += more;
  }

 private:
  bool began_ = false;
  double last_ = 0;  // own seconds without injected sleep
  double slept_ = 0;
};

bool something_is_being_saved(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoints", ignored))
    if (entry.path().extension() == ".partial") return true;
  return false;
}

// Uses a separate thread, so that the saving code needs no hook.
class KillWhileSaving final : public Fault {
 public:
  void before_step(FaultSite& site) override {
    if (!site.here) return;
    std::thread([folder = site.folder, wait = std::chrono::duration<double, std::milli>(site.amount)] {
      while (!something_is_being_saved(folder)) std::this_thread::sleep_for(std::chrono::microseconds(50));
      std::this_thread::sleep_for(wait);
      std::raise(SIGKILL);
    }).detach();
  }
};

// A sum of one number in which the rank of the fault passes another count or operation. With comm.check =
// "plan" the trainer compares calls only in the first steps of a plan, so the fault compares them itself.
template <std::size_t count, ReduceOp op>
class WrongCall final : public Fault {
 public:
  void before_step(FaultSite& site) override {
    std::array<std::int32_t, 2> memory = {};
    Communicator& host = site.host;
    host.all_reduce(memory.data(), site.here ? count : 1, DType::i32, site.here ? op : ReduceOp::sum);
    if (host.call_check() == CallCheck::plan) host.check_calls();
    host.stream().synchronize();
  }
};

template <typename F>
std::unique_ptr<Fault> make_fault() {
  return std::make_unique<F>();
}

constexpr FaultKind kFaultKinds[] = {
    {"kill", "the rank's process is killed (SIGKILL)", make_fault<OwnFault<kill_rank>>},
    {"kill-saving", "it is killed this long after it starts to save the next checkpoint",
     make_fault<KillWhileSaving>, "ms", 0, 0, 1e6},
    {"stop", "it is stopped (SIGSTOP) and never continued", make_fault<OwnFault<stop_rank>>},
    {"hang", "its main thread sleeps forever", make_fault<OwnFault<hang_rank>>},
    {"slow", "each step from step S on takes this much longer", make_fault<OwnFault<slow_down>>, "ms", 0, 50,
     1e6, true},
    {"slower", "each step after step S takes this many times as long", make_fault<SlowerSteps>, "factor", 1,
     1.5, 1000, true},
    {"fail", "it throws an error", make_fault<OwnFault<fail_rank>>},
    {"oom", "its memory runs out", make_fault<OwnFault<run_out_of_memory>>},
    {"disk-full", "no file that it writes can grow", make_fault<OwnFault<fill_disk>>},
    {"link-down", "its machine's network goes down; needs a network namespace and root",
     make_fault<OwnFault<take_link_down>>},
    {"nan", "its gradients are not finite in step S", make_fault<NanGradients>},
    {"bitflip", "the last bit of its first parameter is flipped", make_fault<BitFlip>},
    {"wrong-count", "it calls an all-reduce with another count than its peers",
     make_fault<WrongCall<2, ReduceOp::sum>>},
    {"wrong-op", "it calls an all-reduce with max while its peers use sum",
     make_fault<WrongCall<1, ReduceOp::max>>},
};

}  // namespace

std::span<const FaultKind> fault_kinds() { return kFaultKinds; }

}  // namespace lockstep
