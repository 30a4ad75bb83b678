// SPDX-License-Identifier: Apache-2.0
//
// ShownRank: a rank's public state in shared memory (a file /dev/shm/lockstep-rank.USER.JOB.RANK), for
// `lockstep monitor` and whoever else looks on. Showing it takes some dozen nanoseconds, waits for nobody and
// cannot fail; where there is no shared memory nothing is shown, which one line of the log says. The file is
// locked while its process lives, whatever ends it, and goes with this. What killed processes leave behind
// goes with the next look at it, or an hour later, when another job starts.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/last_words.h"
#include "launch/monitor/latest_value.h"
#include "launch/monitor/rank_state.h"

namespace lockstep {

inline constexpr const char* kRankFolder = "/dev/shm";
inline constexpr std::string_view kRankFilePrefix = "lockstep-rank.";

// The file, from its first byte.
struct RankFile {
  static constexpr std::uint64_t kMagic = 0x314b4e41524b434c;  // "LCKRANK1"
  std::atomic<std::uint64_t> magic;                            // last of all that a new file gets
  std::uint64_t version;
  LatestValue<RankIdentity> identity;
  LatestValue<RankProgress> progress;
};

class ShownRank {
 public:
  // Fills in the process. Names the file by job and rank.
  explicit ShownRank(RankIdentity identity, const std::filesystem::path& folder = kRankFolder);
  ~ShownRank();
  ShownRank(const ShownRank&) = delete;
  ShownRank& operator=(const ShownRank&) = delete;

  // All that follows: the thread that trains.
  // change(RankIdentity&): what was not known at first.
  template <typename Change>
  void introduce(Change change) {
    change(identity_);
    if (file_ != nullptr) file_->identity.show(identity_);
  }
  // change(RankProgress&).
  template <typename Change>
  void tell(Change change) {
    change(progress_);
    if (file_ != nullptr) file_->progress.show(progress_);
  }
  void enter(Activity activity);
  Activity activity() const { return progress_.activity; }
  const RankProgress& progress() const { return progress_; }
  // Empty: nothing is shown.
  const std::filesystem::path& path() const { return path_; }

 private:
  RankIdentity identity_;
  RankProgress progress_;
  std::filesystem::path path_;
  std::optional<RemovedAtEnd> removed_at_end_;  // where a file is shown
  int descriptor_ = -1;                         // locked
  RankFile* file_ = nullptr;
};

// What a rank does while this lives; then it goes on with what it did before. Null: nobody is shown.
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

// The name of a job that this process is rank 0 of: host, process and its start.
std::string own_job_name(const std::string& host);

}  // namespace lockstep
