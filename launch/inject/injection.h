// SPDX-License-Identifier: Apache-2.0
//
// Injection: faults on purpose, for tests and for drills: `lockstep train --inject kill:rank=1,step=20` kills
// rank 1 before its 20th step. What there is stands in one table (faults.cpp), of which help and errors are
// made. Every rank is told of all faults, as some take all ranks to make.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "launch/fit_observer.h"
#include "launch/trainer.h"

namespace lockstep {

// Between two steps of a training, on every rank.
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
  // Collective, behind it.
  virtual void after_step(FaultSite&) {}
};

struct FaultKind {
  std::string_view name;
  std::string_view meaning;
  std::string_view amount;  // what a third number is called, "ms"; empty: there is none
  double least, otherwise, most;
  bool lasts;  // it comes before each step from that one on
  std::unique_ptr<Fault> (*make)();
};
std::span<const FaultKind> fault_kinds();
// A line for each, for the help.
std::string describe_fault_kinds();

struct Injection {
  const FaultKind* kind = nullptr;
  int rank = 0;
  std::int64_t step = 1;  // from 1
  double amount = 0;
};

// "slow:rank=1,step=20,ms=50". Throws UsageError, naming what is allowed.
Injection parse_injection(const std::string& text);

// Makes faults between the steps of a training.
class Injector final : public PassingObserver {
 public:
  // Collective: the first step may be one of them. Throws UsageError for a rank that there is not.
  Injector(std::span<const std::string> texts, Trainer& trainer, Communicator& host,
           std::filesystem::path run_dir, FitObserver& then);
  bool goes_on() override;
  void step_failed() override;

 private:
  struct Planned {
    Injection injection;
    std::unique_ptr<Fault> fault;
  };
  void before_step();
  template <typename Call>
  void for_step(std::int64_t step, const Call& call);

  Trainer& trainer_;
  Communicator& host_;
  std::filesystem::path folder_;
  std::vector<Planned> planned_;
};

}  // namespace lockstep
