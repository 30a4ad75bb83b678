// SPDX-License-Identifier: Apache-2.0
#include "comm/job/node_claims.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "core/log.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

std::string prefix_of(const std::string& name) { return "lockstep-" + name + "."; }

std::optional<uid_t> user_in(const std::string& file, const std::string& prefix) {
  if (!file.starts_with(prefix)) return std::nullopt;
  return number_from<uid_t>(std::string_view(file).substr(prefix.size()));
}

}  // namespace

std::filesystem::path claims_folder() {
  const char* folder = std::getenv("LOCKSTEP_CLAIMS");
  return folder != nullptr && *folder != '\0' ? folder : "/dev/shm";
}

std::filesystem::path NodeClaims::path_of(const std::string& name) const {
  return folder_ / (prefix_of(name) + std::to_string(geteuid()));
}

std::optional<std::string> NodeClaims::holder_of_other_user(const std::string& name) const {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    const std::optional<uid_t> user = user_in(entry.path().filename().string(), prefix_of(name));
    if (!user || *user == geteuid()) continue;
    if (const auto holder = holder_of(entry.path(), *user))
      return fmt::format("{} (user {})", *holder, *user);
  }
  return std::nullopt;
}

// Locks this user's file before it looks at those of other users: of two processes that claim at the same
// time at most one succeeds.
std::optional<std::string> NodeClaims::claim(const std::string& name) {
  if (is_mine(name)) return std::nullopt;
  FileClaim claim(path_of(name), FileClaim::By::owner);
  if (claim.state() == FileClaim::State::taken) return claim.holder();
  if (const auto holder = holder_of_other_user(name)) return holder;
  if (claim.state() != FileClaim::State::held) {
    log::debug("{} cannot be locked ({}): other jobs on this node may claim it too", path_of(name).string(),
               claim.problem());
  }
  claims_.emplace(name, std::move(claim));
  return std::nullopt;
}

std::optional<std::string> NodeClaims::other_holder(const std::string& name) const {
  if (is_mine(name)) return std::nullopt;
  const auto holder = holder_of(path_of(name), geteuid());
  return holder ? holder : holder_of_other_user(name);
}

void NodeClaims::keep_only(const std::string& name) {
  std::erase_if(claims_, [&](const auto& each) { return each.first != name; });
}

}  // namespace lockstep
