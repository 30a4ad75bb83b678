// SPDX-License-Identifier: Apache-2.0
//
// NodeClaims: what this process reserves on its node until it ends, such as a GPU, so that unrelated jobs
// keep apart. Each claim is a locked file (core/system/file_claim.h) in a folder that the node's jobs share:
// $LOCKSTEP_CLAIMS, else /dev/shm. Each user has separate files, lockstep-NAME.UID, which other users cannot
// lock, so the user of every claim is known. A claim that cannot be locked, for example because there is no
// such folder, counts as free: jobs are then not kept apart, and none ends or waits because of it. One
// thread.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/system/file_claim.h"

namespace lockstep {

// $LOCKSTEP_CLAIMS, else /dev/shm.
std::filesystem::path claims_folder();

class NodeClaims {
 public:
  explicit NodeClaims(std::filesystem::path folder = claims_folder()) : folder_(std::move(folder)) {}

  // Claims `name`; may be repeated. Returns the holder if that is another process.
  std::optional<std::string> claim(const std::string& name);
  // True if this process has claimed it, even if the file could not be locked.
  bool is_mine(const std::string& name) const { return claims_.contains(name); }
  // The holder, if that is another process.
  std::optional<std::string> other_holder(const std::string& name) const;
  // Releases all other claims.
  void keep_only(const std::string& name);

 private:
  std::filesystem::path path_of(const std::string& name) const;
  std::optional<std::string> holder_of_other_user(const std::string& name) const;

  std::filesystem::path folder_;
  std::map<std::string, FileClaim> claims_;
};

}  // namespace lockstep
