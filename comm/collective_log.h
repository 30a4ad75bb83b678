// SPDX-License-Identifier: Apache-2.0
//
// CollectiveLog: what a communicator was last asked for and how far it got: its last 1,024 collectives with
// their times. It lies in a file in shared memory (/dev/shm/lockstep.PID.NUMBER), so that other processes of
// the node can read it while it is written, and whoever comes after a process that was killed can read where
// it stood. The file goes with the log; what killed processes leave behind goes an hour later, when another
// one starts.
//
// One thread begins collectives, one other may tell how they get on; any thread or process reads. Nothing
// waits: writing is a few stores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/collective.h"
#include "core/last_words.h"

namespace lockstep {

// Moments by the clock of the host (now_ns(), the same for all processes of a node); 0: not yet, or not
// known.
struct CollectiveMoments {
  std::int64_t final_ns = 0;     // what is sent was final
  std::int64_t enqueued_ns = 0;  // asked for
  std::int64_t started_ns = 0;   // this rank is in it
  std::int64_t met_ns = 0;  // all ranks are in it: a wait before is for a late rank, after it for the wire
  std::int64_t finished_ns = 0;
};

struct CollectiveRecord {
  Collective collective;  // without its memory
  CollectiveMoments moments;
  std::uint64_t sent_bytes = 0;  // by this rank
};

class CollectiveLog {
 public:
  static constexpr std::size_t kRecords = 1024;

  // Of a rank's communicator. Where /dev/shm has no room, in memory of this process alone, which is logged.
  CollectiveLog(std::string_view communicator, int rank, int size);
  ~CollectiveLog();
  CollectiveLog(const CollectiveLog&) = delete;
  CollectiveLog& operator=(const CollectiveLog&) = delete;

  // The collective was enqueued now, or when its purpose says. Sequences ascend by one.
  void begin(const Collective& collective);
  // Of one that was begun. Without effect where more than kRecords came after it, and for 0.
  void started(std::uint64_t sequence);
  void met(std::uint64_t sequence, std::int64_t at_ns);
  void sent(std::uint64_t sequence, std::uint64_t bytes);
  void finished(std::uint64_t sequence);

  // The last one that was begun; 0: none. Of the thread that begins them.
  std::uint64_t newest() const { return newest_; }
  // Nothing where it is not there any more, or is written at this moment.
  std::optional<CollectiveRecord> find_record(std::uint64_t sequence) const;
  // The records there are, oldest first, without those that are written at this moment.
  std::vector<CollectiveRecord> read() const;
  // Empty where it lies in this process's memory alone.
  const std::filesystem::path& path() const { return path_; }

  // The layout in memory.
  struct Slot;
  struct Memory;

 private:
  Slot* find(std::uint64_t sequence) const;

  std::filesystem::path path_;
  std::optional<RemovedAtEnd> removed_at_end_;  // where there is a file
  int descriptor_ = -1;                         // locked while this is alive
  std::uint64_t newest_ = 0;
  Memory* memory_ = nullptr;
};

inline constexpr const char* kCollectiveLogFolder = "/dev/shm";
// Removes from there, or another folder, the logs of this user's processes that ended without removing them
// and had begun nothing for so long.
void remove_abandoned_logs(std::chrono::seconds older_than,
                           const std::filesystem::path& folder = kCollectiveLogFolder);

// The log of another process, alive or dead.
struct CollectiveLogFile {
  std::string communicator;
  int rank = 0;
  int size = 0;
  int process = 0;
  std::vector<CollectiveRecord> records;  // oldest first
};
// Nothing where the file is not one of these, or not one of this version. Throws IoError where it cannot be
// read.
std::optional<CollectiveLogFile> read_collective_log(const std::filesystem::path& path);

}  // namespace lockstep
