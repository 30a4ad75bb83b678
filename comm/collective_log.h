// SPDX-License-Identifier: Apache-2.0
//
// CollectiveLog: the last 1,024 collectives of a communicator with their progress and times. It is a file in
// shared memory (/dev/shm/lockstep.PID.NUMBER): other processes of the node can read it while it is written,
// and after the process was killed. The destructor removes the file. Files of killed processes are removed
// after an hour, when another process starts.
//
// One thread begins collectives, one other may report their progress; any thread or process may read. Writing
// is a few atomic stores and never blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "comm/collective.h"
#include "core/system/last_words.h"

namespace lockstep {

// Times of the host's clock (now_ns(), the same for all processes of a node); 0: not yet, or unknown.
struct CollectiveMoments {
  std::int64_t final_ns = 0;     // the data to send was final
  std::int64_t enqueued_ns = 0;  // requested
  std::int64_t started_ns = 0;   // this rank began it
  std::int64_t met_ns = 0;  // all ranks began it: waits before are for late ranks, waits after for the wire
  std::int64_t finished_ns = 0;
};

struct CollectiveRecord {
  Collective collective;  // without memory addresses
  CollectiveMoments moments;
  std::uint64_t sent_bytes = 0;  // by this rank
};

class CollectiveLog {
 public:
  static constexpr std::size_t kRecords = 1024;

  // If /dev/shm has no room, logs that and uses private memory of this process.
  CollectiveLog(std::string_view communicator, int rank, int size);
  ~CollectiveLog();
  CollectiveLog(const CollectiveLog&) = delete;
  CollectiveLog& operator=(const CollectiveLog&) = delete;

  // Records that the collective was enqueued, now or at its purpose's enqueued_ns. Sequences increase by one.
  void begin(const Collective& collective);
  // Progress of a collective that was begun. No effect for sequence 0, or if kRecords newer ones overwrote
  // it.
  void started(std::uint64_t sequence);
  void met(std::uint64_t sequence, std::int64_t at_ns);
  void sent(std::uint64_t sequence, std::uint64_t bytes);
  void finished(std::uint64_t sequence);

  // Sequence of the last collective begun; 0: none. Only for the thread that begins collectives.
  std::uint64_t newest() const { return newest_; }
  // Empty if the record was overwritten or is being written.
  std::optional<CollectiveRecord> find_record(std::uint64_t sequence) const;
  // All records, oldest first, except those being written.
  std::vector<CollectiveRecord> read() const;
  // Empty if the log is in private memory.
  const std::filesystem::path& path() const { return path_; }

  // The layout in memory.
  struct Slot;
  struct Memory;

 private:
  void remove_file();
  Slot* find(std::uint64_t sequence) const;

  std::filesystem::path path_;
  std::optional<RemovedAtEnd> removed_at_end_;  // if there is a file
  int descriptor_ = -1;                         // of the file, locked; -1: none
  std::uint64_t newest_ = 0;
  Memory* memory_ = nullptr;
};

inline constexpr const char* kCollectiveLogFolder = "/dev/shm";
// Removes logs in `folder` that ended processes of this user left, if their last collective began at least
// `older_than` ago.
void remove_abandoned_logs(std::chrono::seconds older_than,
                           const std::filesystem::path& folder = kCollectiveLogFolder);

// Contents of a log file, of a running or dead process.
struct CollectiveLogFile {
  std::string communicator;
  int rank = 0;
  int size = 0;
  int process = 0;
  std::vector<CollectiveRecord> records;  // oldest first
};
// Empty if the file is not a log of this version, or another user than `user` owns it. Throws IoError if it
// cannot be opened.
std::optional<CollectiveLogFile> read_collective_log(const std::filesystem::path& path,
                                                     std::uint32_t user = geteuid());

}  // namespace lockstep
