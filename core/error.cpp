// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

#include <atomic>

namespace lockstep {
namespace {

constexpr int kNoOverride = -1;
std::atomic<int> process_rank{0};  // a process is one rank; set once by World::join
thread_local int thread_rank = kNoOverride;

}  // namespace

int current_rank() { return thread_rank == kNoOverride ? process_rank.load() : thread_rank; }
void set_process_rank(int rank) { process_rank = rank; }

RankScope::RankScope(int rank) : previous_(thread_rank) { thread_rank = rank; }
RankScope::~RankScope() { thread_rank = previous_; }

void detail::check_failed(const char* expression, const char* file, int line, const std::string& message) {
  throw Error(exit_code::failed, fmt::format("{}:{}: CHECK({}) failed on rank {}{}{}", file, line, expression,
                                             current_rank(), message.empty() ? "" : ": ", message));
}

}  // namespace lockstep
