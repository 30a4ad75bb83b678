// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/jobs/shown_rank.h"

#include <cerrno>
#include <memory>
#include <mutex>
#include <system_error>

#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"
#include "core/system/file_claim.h"
#include "core/timeline.h"
#include "launch/observe/jobs/seen_ranks.h"
#include "launch/observe/monitor/process.h"

namespace lockstep {
namespace {

constexpr std::chrono::hours kShownAfterDeath{1};

std::string file_name(const RankIdentity& identity) {
  std::string name = fmt::format("{}{}.{}.{}", kRankFilePrefix, geteuid(), identity.job.str(), identity.rank);
  std::ranges::replace(name, '/', '_');
  return name;
}

}  // namespace

ShownRank::ShownRank(RankIdentity identity, const std::filesystem::path& folder)
    : identity_(identity), path_(folder / file_name(identity)) {
  static std::once_flag once;
  std::call_once(once, [&] { remove_dead_ranks(kShownAfterDeath, folder); });
  identity_.process = getpid();
  identity_.process_space = own_process_space();
  if (const auto own = process_figures(getpid())) identity_.process_start = own->start;
  identity_.since = seconds_since_1970();
  identity_.since_ns = progress_.activity_ns = now_ns();

  descriptor_ = create_locked_file(path_, sizeof(RankFile), LOCK_EX);
  void* memory = descriptor_ < 0
                     ? MAP_FAILED
                     : mmap(nullptr, sizeof(RankFile), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) {
    log::info("lockstep monitor cannot show this training: cannot create {}: {}", path_.string(),
              std::generic_category().message(errno));
    if (descriptor_ >= 0) unlink(path_.c_str());
    path_.clear();
    return;
  }
  removed_at_end_.emplace(path_);
  file_ = std::construct_at(static_cast<RankFile*>(memory));  // the memory is zeroed
  file_->version = kRankStateVersion;
  file_->identity.show(identity_);
  file_->progress.show(progress_);
  file_->magic.store(RankFile::kMagic, std::memory_order_release);
}

// Removes the name first: a process that still has the file open finds it locked until the end.
ShownRank::~ShownRank() {
  if (file_ != nullptr) {
    unlink(path_.c_str());
    munmap(file_, sizeof(RankFile));
  }
  if (descriptor_ >= 0) close(descriptor_);
}

void ShownRank::enter(Activity activity) {
  tell([activity](RankProgress& progress) {
    progress.activity = activity;
    progress.activity_ns = now_ns();
  });
}

std::string own_job_name(const std::string& host) {
  const auto own = process_figures(getpid());
  return fmt::format("{}.{}.{:x}", host, getpid(), own ? own->start : 0);
}

}  // namespace lockstep
