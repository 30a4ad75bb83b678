// SPDX-License-Identifier: Apache-2.0
//
// Injection: deliberate faults for tests and drills: `lockstep train --inject kill:rank=1,step=20` kills rank
// 1 before its 20th step. One table (faults.cpp) lists all faults; help and errors are generated from it.
// Every rank knows all faults, as some need all ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

// The context of a fault between two steps, on every rank.
struct FaultSite {
  Trainer& trainer;
  Communicator& host;
  const std::filesystem::path& folder;  // run.dir
  double amount;                        // see FaultKind
  bool here;                            // this rank is the one that gets the fault
};

class Fault {
 public:
  virtual ~Fault() = default;
  // Collective, before the step of the fault.
  virtual void before_step(FaultSite& site) = 0;
  // Collective, after the step of the fault.
  virtual void after_step(FaultSite&) {}
};

struct FaultKind {
  std::string_view name;
  std::string_view meaning;
  std::unique_ptr<Fault> (*make)();
  std::string_view amount = {};  // name of the third number, such as "ms"; empty if the kind has none
  double least = 0, otherwise = 0, most = 0;
  bool lasts = false;  // applies to every step from that one on
};
std::span<const FaultKind> fault_kinds();
// One line per kind, for the help.
std::string describe_fault_kinds();

struct Injection {
  const FaultKind* kind = nullptr;
  int rank = 0;
  std::int64_t step = 1;  // from 1
  double amount = 0;
};

// "slow:rank=1,step=20,ms=50". Throws UsageError that lists the allowed values.
Injection parse_injection(const std::string& text);

// Injects faults between the steps of a training.
class Injector final : public TrainingObserver {
 public:
  // texts: as parse_injection() accepts them. A fault of a rank that does not exist never occurs.
  Injector(std::span<const std::string> texts, Trainer& trainer, Communicator& host,
           std::filesystem::path run_dir);
  void before_step() override;
  bool goes_on() override;
  void step_failed() override;

 private:
  struct Planned {
    Injection injection;
    std::unique_ptr<Fault> fault;
  };
  template <typename Call>
  void for_step(std::int64_t step, const Call& call);

  Trainer& trainer_;
  Communicator& host_;
  std::filesystem::path folder_;
  std::vector<Planned> planned_;
};

}  // namespace lockstep
