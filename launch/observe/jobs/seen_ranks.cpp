// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/jobs/seen_ranks.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <tuple>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/collective_log.h"
#include "core/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr double kWaitWorthTelling = 1;  // seconds
// An unlocked and incomplete file of this age was left by a process that died while creating it.
constexpr std::chrono::minutes kMakingTakes{1};

// Both are empty if the file is not a rank file, or has another version.
struct RankReading {
  std::optional<RankIdentity> identity;
  std::optional<RankProgress> progress;
};

// Does not map the file, which may be another user's: see read_collective_log(). Two equal copies in a row
// are one state of the file.
RankReading read_rank_file(int descriptor) {
  constexpr int kAttempts = 100;
  RankFile file{}, again{};
  const auto copy = [descriptor](RankFile& to) {
    return pread(descriptor, &to, sizeof(RankFile), 0) == static_cast<ssize_t>(sizeof(RankFile));
  };
  const auto equal = [](const void* one, const void* other) {
    return std::memcmp(one, other, sizeof(RankFile)) == 0;
  };
  for (int attempt = 0; attempt < kAttempts && copy(file) && copy(again); ++attempt) {
    if (!equal(&file, &again)) continue;
    if (file.magic != RankFile::kMagic || file.version != kRankStateVersion) return {};
    return {.identity = file.identity.look(), .progress = file.progress.look()};
  }
  return {};
}

// The rank's process, even a dead one; empty if it does not exist or its number was reused.
std::optional<ProcessFigures> process_of(const RankIdentity& identity, std::uint64_t own_space) {
  if (own_space == 0 || identity.process_space != own_space) return std::nullopt;
  const auto found = process_figures(identity.process);
  return found && found->start == identity.process_start ? found : std::nullopt;
}

// A dead process holds the lock until its last thread has ended and its memory is freed, so the process
// decides if it is known. If not, as in another PID namespace, a locked file means a living process.
RankLife life_of(int descriptor, const std::optional<ProcessFigures>& process) {
  const bool locked = flock(descriptor, LOCK_SH | LOCK_NB) != 0;
  if (!locked) flock(descriptor, LOCK_UN);
  if (process ? process->dead() : !locked) return RankLife::died;
  const bool stopped = process && (process->state == 'T' || process->state == 't');
  return stopped ? RankLife::stopped : RankLife::running;
}

// A rank that ends in order removes its file before it unlocks it.
bool is_removed(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && status.st_nlink == 0;
}

// Reads the records of its communicators, which are in the same folder and of the same user. Records from
// before the rank began are those of an earlier process with its number. Collectives on GPUs are not visible
// to the host, unless comm.kernel_times is set.
std::optional<CollectiveWait> wait_of(const SeenRank& rank, std::int64_t now) {
  const RankIdentity& identity = rank.identity;
  std::optional<CollectiveWait> longest;
  const std::string prefix = fmt::format("lockstep.{}.", identity.process);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(kRankFolder, ignored)) {
    if (!entry.path().filename().string().starts_with(prefix) || !entry.is_regular_file(ignored)) continue;
    try {
      const auto log = read_collective_log(entry.path(), rank.user);
      if (!log || log->process != identity.process) continue;
      for (const CollectiveRecord& record : log->records) {
        if (record.moments.started_ns <= identity.since_ns || record.moments.finished_ns != 0) continue;
        const double seconds = seconds_between(record.moments.started_ns, now);
        if (!longest || seconds > longest->seconds)
          longest = {.what = describe(record.collective), .seconds = seconds};
      }
    } catch (const IoError&) {  // the rank has ended meanwhile
    }
  }
  if (longest && longest->seconds < kWaitWorthTelling) longest.reset();
  return longest;
}

// Calls look(path, descriptor, status) for each rank file of this user, or of all users for root. Other files
// under such a name (a pipe, a link) do not block.
template <typename Look>
void for_each_rank_file(const fs::path& folder, Look look) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!entry.path().filename().string().starts_with(kRankFilePrefix)) continue;
    const int descriptor = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    struct stat status = {};
    const bool known = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
                       (status.st_uid == geteuid() || geteuid() == 0);
    if (known) look(entry.path(), descriptor, status);
    close(descriptor);
  }
}

}  // namespace

std::vector<SeenRank> see_ranks(const fs::path& folder, const std::string& job, std::int64_t now) {
  std::vector<SeenRank> ranks;
  const std::uint64_t own_space = own_process_space();
  for_each_rank_file(folder, [&](const fs::path& path, int descriptor, const struct stat& status) {
    if (status.st_size != sizeof(RankFile)) return;
    const RankReading reading = read_rank_file(descriptor);
    if (!reading.identity || !reading.progress) return;
    if (!job.empty() && reading.identity->job.str() != job) return;
    SeenRank rank{
        .path = path, .user = status.st_uid, .identity = *reading.identity, .progress = *reading.progress};
    rank.process = process_of(rank.identity, own_space);
    rank.life = life_of(descriptor, rank.process);
    if (rank.life == RankLife::died && is_removed(descriptor)) return;  // it ended in order meanwhile
    if (rank.life == RankLife::died) rank.process.reset();
    if (rank.process && rank.progress.quiet_seconds(now) > kWaitWorthTelling) rank.waits = wait_of(rank, now);
    ranks.push_back(std::move(rank));
  });
  std::ranges::sort(ranks, {}, [](const SeenRank& rank) {
    return std::tuple(rank.identity.job.str(), rank.identity.rank);
  });
  return ranks;
}

void remove_dead_ranks(std::chrono::seconds older_than, const fs::path& folder) {
  const std::uint64_t own_space = own_process_space();
  for_each_rank_file(folder, [&](const fs::path& path, int descriptor, const struct stat& status) {
    const bool whole = status.st_size == sizeof(RankFile);
    const RankReading reading = whole ? read_rank_file(descriptor) : RankReading{};
    double age = seconds_since_1970() - static_cast<double>(status.st_ctim.tv_sec);
    std::chrono::seconds least = std::max<std::chrono::seconds>(older_than, kMakingTakes);
    if (reading.identity && reading.progress) {
      age = reading.progress->quiet_seconds(now_ns());
      least = older_than;
    }
    // Skips young files without testing the lock: the creator may be about to take it.
    if (age < static_cast<double>(least.count())) return;
    const auto process = reading.identity ? process_of(*reading.identity, own_space) : std::nullopt;
    if (life_of(descriptor, process) == RankLife::died) unlink(path.c_str());
  });
}

}  // namespace lockstep
