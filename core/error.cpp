// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

#include <atomic>

namespace lockstep {
namespace {

constexpr int kNoOverride = -1;
std::atomic<int> process_rank{0};  // one rank per process; set once by World::join
thread_local int thread_rank = kNoOverride;
std::atomic<std::int64_t> process_step{0};

}  // namespace

int current_rank() { return thread_rank == kNoOverride ? process_rank.load() : thread_rank; }
void set_process_rank(int rank) { process_rank = rank; }
std::int64_t current_step() { return process_step; }
void set_current_step(std::int64_t step) { process_step = step; }

std::string current_place() {
  const std::int64_t step = current_step();
  return step == 0 ? fmt::format("rank {}", current_rank())
                   : fmt::format("rank {} in step {}", current_rank(), step);
}

RankScope::RankScope(int rank) : previous_(thread_rank) { thread_rank = rank; }
RankScope::~RankScope() { thread_rank = previous_; }

void detail::check_failed(const char* expression, const char* file, int line, const std::string& message) {
  throw Error(exit_code::failed, fmt::format("{}:{}: CHECK({}) failed on {}{}{}", file, line, expression,
                                             current_place(), message.empty() ? "" : ": ", message));
}

}  // namespace lockstep
