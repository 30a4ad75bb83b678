// SPDX-License-Identifier: Apache-2.0
//
// ShownRank: a rank's public state in shared memory (a file /dev/shm/lockstep-rank.USER.JOB.RANK), for
// `lockstep monitor` and other observers. An update takes tens of nanoseconds, never blocks and never fails.
// Without shared memory nothing is published, and one log line says so. The process holds a lock on the file
// while it lives, and this object removes the file. `lockstep monitor` removes the files of a job whose
// processes here were all killed; otherwise a job that starts an hour later or more removes them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/system/last_words.h"
#include "launch/observe/jobs/latest_value.h"
#include "launch/observe/jobs/rank_state.h"

namespace lockstep {

inline constexpr const char* kRankFolder = "/dev/shm";
inline constexpr std::string_view kRankFilePrefix = "lockstep-rank.";

// The file, from its first byte.
struct RankFile {
  static constexpr std::uint64_t kMagic = 0x314b4e41524b434c;  // "LCKRANK1"
  std::atomic<std::uint64_t> magic;                            // written last in a new file
  std::uint64_t version;
  LatestValue<RankIdentity> identity;
  LatestValue<RankProgress> progress;
};

class ShownRank {
 public:
  // Fills in the process fields. The file's name contains job and rank.
  explicit ShownRank(RankIdentity identity, const std::filesystem::path& folder = kRankFolder);
  ~ShownRank();
  ShownRank(const ShownRank&) = delete;
  ShownRank& operator=(const ShownRank&) = delete;

  // All members below: the training thread only.
  // change(RankIdentity&): adds facts that were unknown at construction.
  template <typename Change>
  void introduce(Change change) {
    change(identity_);
    if (file_ != nullptr) file_->identity.show(identity_);
  }
  // change(RankProgress&): updates the progress.
  template <typename Change>
  void tell(Change change) {
    change(progress_);
    if (file_ != nullptr) file_->progress.show(progress_);
  }
  void enter(Activity activity);
  Activity activity() const { return progress_.activity; }
  const RankIdentity& identity() const { return identity_; }
  // Empty if nothing is published.
  const std::filesystem::path& path() const { return path_; }

 private:
  RankIdentity identity_;
  RankProgress progress_;
  std::filesystem::path path_;
  std::optional<RemovedAtEnd> removed_at_end_;  // set if a file exists
  int descriptor_ = -1;                         // locked
  RankFile* file_ = nullptr;
};

// Sets a rank's activity for the lifetime of this object, then restores the previous one. shown: may be null.
class ShownActivity {
 public:
  ShownActivity(ShownRank* shown, Activity activity) : shown_(shown) {
    if (shown_ == nullptr) return;
    before_ = shown_->activity();
    shown_->enter(activity);
  }
  ~ShownActivity() {
    if (shown_ != nullptr) shown_->enter(before_);
  }
  ShownActivity(const ShownActivity&) = delete;
  ShownActivity& operator=(const ShownActivity&) = delete;

 private:
  ShownRank* shown_;
  Activity before_ = Activity::starting;
};

// The name of the job whose rank 0 is this process: host, process number and start time.
std::string own_job_name(const std::string& host);

}  // namespace lockstep
