// SPDX-License-Identifier: Apache-2.0
#include "comm/collective_log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/file_claim.h"
#include "core/timeline.h"

namespace lockstep {

// A record is valid if its sequence is the same before and after a reader has read the other fields.
struct CollectiveLog::Slot {
  std::atomic<std::uint64_t> sequence;  // 0: empty, or being written
  std::atomic<std::uint64_t> call;      // CollectiveIdentity
  std::atomic<std::uint64_t> count;
  std::atomic<std::int64_t> final_ns;
  std::atomic<std::int64_t> enqueued_ns;
  std::atomic<std::int64_t> started_ns;
  std::atomic<std::int64_t> met_ns;
  std::atomic<std::int64_t> finished_ns;
  std::atomic<std::uint64_t> sent_bytes;
};

// The layout of the file, in the machine's byte order.
struct CollectiveLog::Memory {
  std::array<char, 8> magic;  // "LSCOLL01"
  std::int32_t rank;
  std::int32_t size;
  std::int32_t process;
  std::array<char, 12> communicator;  // ends with zeros
  std::array<Slot, kRecords> slots;
};

namespace {

using Slot = CollectiveLog::Slot;
using LogMemory = CollectiveLog::Memory;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "records are read by other processes");

constexpr std::array<char, 8> kMagic = {'L', 'S', 'C', 'O', 'L', 'L', '0', '1'};
constexpr std::string_view kFilePrefix = "lockstep.";
constexpr std::chrono::hours kKeptAfterDeath{1};

std::string system_words() { return std::generic_category().message(errno); }

std::filesystem::path next_path() {
  static std::atomic<int> made{0};
  return std::filesystem::path(kCollectiveLogFolder) / fmt::format("{}{}.{}", kFilePrefix, getpid(), made++);
}

// A descriptor of the file; -1 if it cannot be opened, or if a running process has it locked, perhaps one of
// another container with this process's number.
int open_if_abandoned(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0 || flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  close(descriptor);
  return -1;
}

std::optional<CollectiveRecord> read_slot(const Slot& slot) {
  const std::uint64_t sequence = slot.sequence.load(std::memory_order_acquire);
  if (sequence == 0) return std::nullopt;
  const auto value = [](const auto& field) { return field.load(std::memory_order_acquire); };
  CollectiveRecord record{.collective = collective_of(
                              {.sequence = sequence, .call = value(slot.call), .count = value(slot.count)}),
                          .moments = {.final_ns = value(slot.final_ns),
                                      .enqueued_ns = value(slot.enqueued_ns),
                                      .started_ns = value(slot.started_ns),
                                      .met_ns = value(slot.met_ns),
                                      .finished_ns = value(slot.finished_ns)},
                          .sent_bytes = value(slot.sent_bytes)};
  record.collective.purpose.final_ns = record.moments.final_ns;
  if (slot.sequence.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  return record;
}

std::vector<CollectiveRecord> read_slots(const LogMemory& memory) {
  std::vector<CollectiveRecord> records;
  for (const Slot& slot : memory.slots) {
    if (const auto record = read_slot(slot)) records.push_back(*record);
  }
  std::ranges::sort(records, {}, [](const CollectiveRecord& record) { return record.collective.sequence; });
  return records;
}

// Does not map the file: reading a mapping raises SIGBUS if the file is shortened meanwhile, or if it has a
// hole and memory is full. For root, another user may have made such a file.
std::optional<CollectiveLogFile> read_collective_log(int descriptor, std::uint32_t user) {
  struct stat status = {};
  if (fstat(descriptor, &status) != 0 || status.st_uid != user ||
      static_cast<std::size_t>(status.st_size) != sizeof(LogMemory))
    return std::nullopt;
  const auto before = std::make_unique<LogMemory>(), memory = std::make_unique<LogMemory>();
  for (LogMemory* copy : {before.get(), memory.get()})
    if (pread(descriptor, copy, sizeof(LogMemory), 0) != static_cast<ssize_t>(sizeof(LogMemory)))
      return std::nullopt;
  if (memory->magic != kMagic) return std::nullopt;
  const auto equal = [](const void* one, const void* other) {
    return std::memcmp(one, other, sizeof(Slot)) == 0;
  };
  // Drops the records that were written meanwhile.
  for (std::size_t i = 0; i < CollectiveLog::kRecords; ++i)
    if (!equal(&before->slots[i], &memory->slots[i])) memory->slots[i].sequence = 0;
  const char* name = memory->communicator.data();
  return CollectiveLogFile{.communicator = std::string(name, strnlen(name, memory->communicator.size())),
                           .rank = memory->rank,
                           .size = memory->size,
                           .process = memory->process,
                           .records = read_slots(*memory)};
}

}  // namespace

void remove_abandoned_logs(std::chrono::seconds older_than, const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (!entry.path().filename().string().starts_with(kFilePrefix)) continue;
    const int descriptor = open_if_abandoned(entry.path());
    if (descriptor < 0) continue;
    if (const auto log = read_collective_log(descriptor, geteuid())) {
      const std::int64_t last_ns = log->records.empty() ? 0 : log->records.back().moments.enqueued_ns;
      if (std::chrono::nanoseconds(now_ns() - last_ns) >= older_than) unlink(entry.path().c_str());
    }
    close(descriptor);
  }
}

CollectiveLog::CollectiveLog(std::string_view communicator, int rank, int size) {
  static std::once_flag once;
  std::call_once(once, [] { remove_abandoned_logs(kKeptAfterDeath); });
  do {
    path_ = next_path();
    if (const int abandoned = open_if_abandoned(path_); abandoned >= 0) {
      unlink(path_.c_str());
      close(abandoned);
    }
    descriptor_ = create_locked_file(path_, sizeof(Memory), LOCK_SH);
  } while (descriptor_ < 0 && errno == EEXIST);
  const int shared = descriptor_ < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  if (descriptor_ < 0) {
    log::info("{}: cannot be created ({}); other processes cannot read the record of collectives",
              path_.string(), system_words());
    path_.clear();
  } else {
    removed_at_end_.emplace(path_);
  }
  void* memory = mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, shared, descriptor_, 0);
  if (memory == MAP_FAILED) {
    const std::string reason = system_words();
    remove_file();
    throw MemoryError(fmt::format("cannot allocate the record of collectives: {}", reason));
  }
  memory_ = std::construct_at(static_cast<Memory*>(memory));  // on zeroed memory
  memory_->rank = rank;
  memory_->size = size;
  memory_->process = getpid();
  communicator.copy(memory_->communicator.data(), memory_->communicator.size() - 1);
  memory_->magic = kMagic;
}

CollectiveLog::~CollectiveLog() {
  munmap(memory_, sizeof(Memory));
  remove_file();
}

void CollectiveLog::remove_file() {
  if (descriptor_ < 0) return;
  unlink(path_.c_str());
  close(descriptor_);
}

void CollectiveLog::begin(const Collective& collective) {
  const CollectiveIdentity identity = identity_of(collective);
  Slot& slot = memory_->slots[identity.sequence % kRecords];
  slot.sequence.store(0, std::memory_order_release);
  slot.call.store(identity.call, std::memory_order_release);
  slot.count.store(identity.count, std::memory_order_release);
  slot.final_ns.store(collective.purpose.final_ns, std::memory_order_release);
  const std::int64_t enqueued_ns = collective.purpose.enqueued_ns;
  slot.enqueued_ns.store(enqueued_ns > 0 ? enqueued_ns : now_ns(), std::memory_order_release);
  slot.started_ns.store(0, std::memory_order_release);
  slot.met_ns.store(0, std::memory_order_release);
  slot.finished_ns.store(0, std::memory_order_release);
  slot.sent_bytes.store(0, std::memory_order_release);
  slot.sequence.store(identity.sequence, std::memory_order_release);
  newest_ = identity.sequence;
}

CollectiveLog::Slot* CollectiveLog::find(std::uint64_t sequence) const {
  Slot& slot = memory_->slots[sequence % kRecords];
  const bool there = sequence > 0 && slot.sequence.load(std::memory_order_acquire) == sequence;
  return there ? &slot : nullptr;
}

void CollectiveLog::started(std::uint64_t sequence) {
  if (Slot* slot = find(sequence)) slot->started_ns.store(now_ns(), std::memory_order_release);
}

void CollectiveLog::met(std::uint64_t sequence, std::int64_t at_ns) {
  if (Slot* slot = find(sequence)) slot->met_ns.store(at_ns, std::memory_order_release);
}

void CollectiveLog::sent(std::uint64_t sequence, std::uint64_t bytes) {
  if (Slot* slot = find(sequence)) slot->sent_bytes.store(bytes, std::memory_order_release);
}

void CollectiveLog::finished(std::uint64_t sequence) {
  if (Slot* slot = find(sequence)) slot->finished_ns.store(now_ns(), std::memory_order_release);
}

std::optional<CollectiveRecord> CollectiveLog::find_record(std::uint64_t sequence) const {
  const Slot* slot = find(sequence);
  auto record = slot == nullptr ? std::nullopt : read_slot(*slot);
  if (record && record->collective.sequence != sequence) record.reset();
  return record;
}

std::vector<CollectiveRecord> CollectiveLog::read() const { return read_slots(*memory_); }

std::optional<CollectiveLogFile> read_collective_log(const std::filesystem::path& path, std::uint32_t user) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw IoError(fmt::format("{}: {}", path.string(), system_words()));
  auto file = read_collective_log(descriptor, user);
  close(descriptor);
  return file;
}

}  // namespace lockstep
