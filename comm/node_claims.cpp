// SPDX-License-Identifier: Apache-2.0
#include "comm/node_claims.h"

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "core/log.h"

namespace lockstep {
namespace {

// Whoever only asks who has a file locks it for microseconds.
constexpr int kAttempts = 4;
constexpr std::chrono::milliseconds kBetweenAttempts{5};

}  // namespace

std::filesystem::path claims_folder() {
  const char* folder = std::getenv("LOCKSTEP_CLAIMS");
  return folder != nullptr && *folder != '\0' ? folder : "/dev/shm";
}

std::optional<std::string> NodeClaims::claim(const std::string& name) {
  if (is_mine(name)) return std::nullopt;
  FileClaim claim(path_of(name));
  for (int attempt = 1; attempt < kAttempts && claim.state() == FileClaim::State::taken; ++attempt) {
    std::this_thread::sleep_for(kBetweenAttempts);
    claim = FileClaim(path_of(name));
  }
  if (claim.state() == FileClaim::State::taken) return claim.holder();
  if (claim.state() != FileClaim::State::held) {
    log::debug("{} cannot be locked ({}): other jobs on this node may take the same", path_of(name).string(),
               claim.problem());
  }
  claims_.emplace(name, std::move(claim));
  return std::nullopt;
}

std::optional<std::string> NodeClaims::other_holder(const std::string& name) const {
  return is_mine(name) ? std::nullopt : holder_of(path_of(name));
}

void NodeClaims::keep_only(const std::string& name) {
  std::erase_if(claims_, [&](const auto& each) { return each.first != name; });
}

}  // namespace lockstep
