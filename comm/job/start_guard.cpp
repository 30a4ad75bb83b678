// SPDX-License-Identifier: Apache-2.0
#include "comm/job/start_guard.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>

#include <unistd.h>

#include "comm/job/networks.h"
#include "core/error.h"
#include "core/log.h"
#include "core/system/backtrace.h"
#include "core/system/host_name.h"
#include "core/system/last_words.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

void add_variable(Variables& variables, std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals != std::string_view::npos)
    variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
}

// The environment of another process of this user; empty if it cannot be read.
Variables variables_of(int process) {
  std::ifstream file(fmt::format("/proc/{}/environ", process));
  Variables variables;
  for (std::string each; std::getline(file, each, '\0');) add_variable(variables, each);
  return variables;
}

// A copy of this process's environment. The thread of a StartGuard must not call getenv(): MPI_Init calls
// setenv() meanwhile, which frees memory that getenv() reads.
Variables own_variables() {
  Variables variables;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) add_variable(variables, *each);
  return variables;
}

Environment environment_of(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(std::string_view(name));
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

// A name that the launcher gives all processes of this launch and no others; "" if it gives none.
std::string launch_name(const Environment& environment) {
  const auto text = [&](const char* name) -> std::string {
    const char* value = environment(name);
    return value == nullptr ? "" : value;
  };
  for (const char* name : {"PMIX_NAMESPACE", "PMI_JOBID"}) {
    if (!text(name).empty()) return text(name);
  }
  return text("SLURM_STEP_ID").empty() ? "" : text("SLURM_JOB_ID") + '.' + text("SLURM_STEP_ID");
}

// The process of each other rank with the highest number: those before it are shells that wait for it.
std::map<int, int> processes_of_launch(const Environment& own) {
  std::map<int, int> last;
  const std::string launch = launch_name(own);
  if (launch.empty()) return last;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    const auto process = number_from<int>(name);
    if (!process || *process == getpid()) continue;
    const Variables variables = variables_of(*process);
    const Environment environment = environment_of(variables);
    if (launch_name(environment) != launch) continue;
    int& known = last[find_launch(environment).rank];
    known = std::max(known, *process);
  }
  last.erase(find_launch(own).rank);
  return last;
}

// A line about each other process of this machine that the same launcher started, and more lines about its
// threads if it is stopped; "" for none.
std::string describe_other_ranks(const Environment& own) {
  std::string text;
  for (const auto& [rank, process] : processes_of_launch(own)) {
    const std::string all = describe_process(process);
    if (all.empty()) continue;
    const bool stopped = process_state(process) == 'T';
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "\n", rank,
                        stopped ? all : all.substr(0, all.find('\n')));
  }
  return text;
}

// Additional time for a rank: rank 0 reports first; if it does not start, another rank does.
std::chrono::seconds turn_of(int rank) { return std::chrono::seconds(2 * std::min(rank, 3)); }

}  // namespace

std::chrono::seconds start_limit(const Environment& environment) {
  constexpr int kMost = 1'000'000;
  const char* value = environment(kStartSecondsVariable);
  if (value == nullptr || *value == '\0') return std::chrono::minutes(5);
  const auto seconds = number_from<int>(value);
  if (!seconds || *seconds < 0 || *seconds > kMost) {
    throw ConfigError(fmt::format(
        "{} = \"{}\": allowed are whole seconds from 0 to {} for the start of a job; 0 is unlimited",
        kStartSecondsVariable, value, kMost));
  }
  return std::chrono::seconds(*seconds);
}

StartGuard::StartGuard(std::chrono::seconds limit) : limit_(limit) {
  if (limit <= std::chrono::seconds{0}) return;
  thread_ = start_without_signals("ls-start",
                                  [this, variables = own_variables()] { run(environment_of(variables)); });
}

StartGuard::~StartGuard() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StartGuard::run(const Environment& environment) {
  const Launch launch = find_launch(environment);
  const RankScope scope(launch.rank);
  std::unique_lock lock(mutex_);
  // Waits second by second: time in which this process was stopped counts as one second at most.
  for (auto left = limit_ + turn_of(launch.rank); left.count() > 0; --left) {
    if (changed_.wait_for(lock, std::chrono::seconds(1), [this] { return started_; })) return;
  }
  const std::string others = describe_other_ranks(environment);
  const std::string networks = describe_choice_of_network(addresses_of_job(own_addresses(), environment));
  end_within(std::chrono::seconds(5), exit_code::resumable);
  log::last_error(fmt::format(
      "not all {} processes of the job started MPI within {} s; the job ends with code {}. A process is "
      "stopped or hangs, or machines cannot reach each other; {} sets the limit in seconds\n{}{}",
      launch.size, limit_.count(), exit_code::resumable, kStartSecondsVariable,
      networks.empty() ? "" : networks + '\n',
      others.empty() ? host_name() + " runs none of the other ranks"
                     : fmt::format("the other ranks on {}:\n{}", host_name(), others)));
  end_process(exit_code::resumable, {});
}

}  // namespace lockstep
