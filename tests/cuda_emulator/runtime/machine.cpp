// SPDX-License-Identifier: Apache-2.0
//
// The machine and the faults that the environment specifies.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cuda_emulator/runtime/faults.h"
#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/cuda_emulator/runtime/visible_devices.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

[[noreturn]] void refuse(const char* variable, std::string_view text, const char* expected) {
  std::fprintf(stderr, "emulated GPU: %s=%.*s: expected %s\n", variable, static_cast<int>(text.size()),
               text.data(), expected);
  std::_Exit(78);
}

// A number and the rest of the text after it.
struct Amount {
  std::uint64_t number = 0;
  std::string unit;
};

Amount read_amount(const char* variable, std::string_view text, const char* expected) {
  Amount amount;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), amount.number);
  if (error != std::errc{}) refuse(variable, text, expected);
  amount.unit.assign(end, text.data() + text.size());
  return amount;
}

// Calls visit(text) if the variable is set and not empty.
template <typename Visit>
void read(const char* variable, Visit visit) {
  const char* text = std::getenv(variable);
  if (text != nullptr && *text != '\0') visit(std::string_view(text));
}

std::uint64_t scaled(const char* variable, std::string_view text, const char* expected,
                     const std::map<std::string, std::uint64_t>& units) {
  const Amount amount = read_amount(variable, text, expected);
  const auto unit = units.find(amount.unit);
  if (unit == units.end()) refuse(variable, text, expected);
  return amount.number * unit->second;
}

std::size_t read_bytes(const char* variable, std::string_view text) {
  return scaled(variable, text, "bytes, as in 512MiB",
                {{"", 1}, {"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", std::uint64_t{1} << 30}});
}

HostAccess read_host_access(std::string_view text) {
  if (text == "allowed") return HostAccess::allowed;
  if (text == "pages") return HostAccess::pages;
  if (text != "denied") refuse("LOCKSTEP_EMULATED_HOST_ACCESS", text, "denied, pages or allowed");
  return HostAccess::denied;
}

Machine read_machine() {
  Machine machine;
  const std::map<std::string, std::uint64_t> none = {{"", 1}};
  read("LOCKSTEP_EMULATED_GPUS", [&](std::string_view text) {
    machine.devices = static_cast<int>(scaled("LOCKSTEP_EMULATED_GPUS", text, "a number of devices", none));
  });
  read("LOCKSTEP_EMULATED_MEMORY",
       [&](std::string_view text) { machine.memory_bytes = read_bytes("LOCKSTEP_EMULATED_MEMORY", text); });
  machine.context_bytes = machine.memory_bytes / 32;  // 64 MiB of 2 GiB
  read("LOCKSTEP_EMULATED_CONTEXT",
       [&](std::string_view text) { machine.context_bytes = read_bytes("LOCKSTEP_EMULATED_CONTEXT", text); });
  read("LOCKSTEP_EMULATED_HOST_ACCESS",
       [&](std::string_view text) { machine.host_access = read_host_access(text); });
  read("LOCKSTEP_EMULATED_CAPABILITY", [&](std::string_view text) {
    machine.capability =
        static_cast<int>(scaled("LOCKSTEP_EMULATED_CAPABILITY", text, "a number, as in 75 for 7.5", none));
  });
  read("LOCKSTEP_EMULATED_MULTIPROCESSORS", [&](std::string_view text) {
    machine.multiprocessors = static_cast<int>(
        scaled("LOCKSTEP_EMULATED_MULTIPROCESSORS", text, "a number of multiprocessors", none));
    if (machine.multiprocessors < 1)
      refuse("LOCKSTEP_EMULATED_MULTIPROCESSORS", text, "at least one multiprocessor");
  });
  read("LOCKSTEP_EMULATED_RESIDENT", [&](std::string_view text) {
    machine.resident_blocks = scaled("LOCKSTEP_EMULATED_RESIDENT", text, "a number of blocks", none);
    if (machine.resident_blocks < 1) refuse("LOCKSTEP_EMULATED_RESIDENT", text, "at least one block");
  });
  read("LOCKSTEP_EMULATED_SEED", [&](std::string_view text) {
    machine.seed = scaled("LOCKSTEP_EMULATED_SEED", text, "a number", none);
  });
  read("LOCKSTEP_EMULATED_DELAY", [&](std::string_view text) {
    machine.delay = std::chrono::microseconds(scaled("LOCKSTEP_EMULATED_DELAY", text, "a time, as in 200us",
                                                     {{"us", 1}, {"ms", 1000}, {"s", 1000000}}));
  });
  read("LOCKSTEP_EMULATED_PLAN_FAILURES", [&](std::string_view text) {
    machine.plan_failures =
        static_cast<int>(scaled("LOCKSTEP_EMULATED_PLAN_FAILURES", text, "a percentage", none));
  });
  read("LOCKSTEP_EMULATED_GRAPHS", [&](std::string_view text) {
    if (text != "empty" && text != "whole") refuse("LOCKSTEP_EMULATED_GRAPHS", text, "whole or empty");
    machine.graphs_empty = text == "empty";
  });
  read("LOCKSTEP_EMULATED_PAGEABLE", [&](std::string_view text) {
    if (text != "late" && text != "early") refuse("LOCKSTEP_EMULATED_PAGEABLE", text, "early or late");
    machine.pageable_late = text == "late";
  });
  machine.places = visible_places(std::getenv("CUDA_VISIBLE_DEVICES"), machine.devices);
  machine.devices = static_cast<int>(machine.places.size());
  return machine;
}

// A fault of LOCKSTEP_EMULATED_FAULTS.
struct Fault {
  int call = 0;  // number of the call, from 1; 0: any call
  std::size_t least_bytes = 0;
  int status = 0;
};

std::string_view before(std::string_view text, char separator) {
  return text.substr(0, text.find(separator));
}

const char* const kFaults = "LOCKSTEP_EMULATED_FAULTS";
const char* const kFaultForm =
    "FUNCTION:CALL=STATUS or FUNCTION@BYTES=STATUS, optionally after RANK/, separated by commas";

int rank_of_this_process() {
  const char* text = std::getenv("OMPI_COMM_WORLD_RANK");
  return text == nullptr ? 0 : std::atoi(text);
}

class Faults {
 public:
  Faults() {
    read(kFaults, [&](std::string_view text) {
      while (!text.empty()) {
        const std::string_view item = before(text, ',');
        text.remove_prefix(std::min(item.size() + 1, text.size()));
        add(item);
      }
    });
  }

  int find(const char* function, std::size_t bytes) {
    const Unseen unseen;
    if (faults_.empty()) return 0;
    const std::lock_guard lock(mutex_);
    const int call = ++calls_[function];
    const auto [first, last] = faults_.equal_range(function);
    for (auto fault = first; fault != last; ++fault) {
      const Fault& f = fault->second;
      if (f.call == call || (f.call == 0 && bytes >= f.least_bytes)) return f.status;
    }
    return 0;
  }

 private:
  void add(std::string_view item) {
    const std::string_view whole = item;
    if (const std::size_t slash = item.find('/'); slash != std::string_view::npos) {
      if (static_cast<int>(number(item.substr(0, slash), whole)) != rank_of_this_process()) return;
      item.remove_prefix(slash + 1);
    }
    const std::size_t equals = item.find('=');
    const std::size_t colon = std::min(item.find(':'), item.find('@'));
    if (equals == std::string_view::npos || colon > equals) refuse(kFaults, whole, kFaultForm);
    Fault fault;
    const std::uint64_t value = number(item.substr(colon + 1, equals - colon - 1), whole);
    if (item[colon] == ':') {
      fault.call = static_cast<int>(value);
    } else {
      fault.least_bytes = value;
    }
    const std::string_view status = item.substr(equals + 1);
    fault.status = status == "hang" ? kHang : static_cast<int>(number(status, whole));
    faults_.emplace(std::string(item.substr(0, colon)), fault);
  }

  static std::uint64_t number(std::string_view text, std::string_view whole) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) refuse(kFaults, whole, kFaultForm);
    return value;
  }

  std::mutex mutex_;
  std::multimap<std::string, Fault, std::less<>> faults_;
  std::map<std::string, int, std::less<>> calls_;
};

}  // namespace

const Machine& machine() {
  const Unseen unseen;
  static const Machine& read = *new Machine(read_machine());
  return read;
}

int place_of(int device) { return machine().places.at(static_cast<std::size_t>(device)); }

int injected_fault(const char* function) { return injected_fault(function, 0); }

int injected_fault(const char* function, std::size_t bytes) {
  const Unseen unseen;
  static Faults& faults = *new Faults;
  return faults.find(function, bytes);
}

}  // namespace lockstep::emulator
