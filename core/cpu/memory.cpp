// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <malloc.h>
#include <sys/mman.h>

#include "core/backend_factories.h"
#include "core/error.h"
#include "core/system/control_groups.h"

namespace lockstep {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLarge = std::size_t{1} << 20;
// For larger requests check the available memory first: Linux overcommits, and the OOM killer ends the
// process when it touches the pages.
constexpr std::size_t kPromised = std::size_t{64} << 20;

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// The number after a word in a file of /proc or /sys; kUnlimited if there is no number ("max").
std::size_t number_in(const std::filesystem::path& path, const std::string& word) {
  std::ifstream file(path);
  std::string found;
  std::size_t number = kUnlimited;
  while (!word.empty() && file >> found && found != word) {
  }
  return file >> number ? number : kUnlimited;
}

// A control group's files of memory, and the names of its file cache in memory.stat: of pages that were read
// once, and more often.
struct MemoryFiles {
  const char *limit, *used, *inactive, *active;
};
constexpr MemoryFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                                   "total_active_file"};
constexpr MemoryFiles kVersion2 = {"memory.max", "memory.current", "inactive_file", "active_file"};
// Without a limit version 1 reports almost 2^63 bytes, rounded down to a page.
constexpr std::size_t kLargestLimit = std::size_t{1} << 62;

// The memory that the processes of a control group can still allocate. File cache counts as free, as in
// MemAvailable.
std::size_t room_in(const std::filesystem::path& group, const MemoryFiles& files) {
  const std::size_t limit = number_in(group / files.limit, "");
  const std::size_t used = number_in(group / files.used, "");
  if (limit > kLargestLimit || used == kUnlimited) return kUnlimited;
  std::size_t cache = 0, bytes = 0;
  std::ifstream statistics(group / "memory.stat");
  for (std::string name; statistics >> name >> bytes;)
    if (name == files.inactive || name == files.active) cache += bytes;
  return limit - std::min(used - std::min(cache, used), limit);
}

// The least room of all control groups around this process (a container, a batch job and its step).
std::size_t control_group_room(const std::filesystem::path& root) {
  std::size_t room = kUnlimited;
  for (const std::filesystem::path& group : control_groups("memory", root))
    room = std::min({room, room_in(group, kVersion1), room_in(group, kVersion2)});
  return room;
}

}  // namespace

std::size_t detail::available_cpu_memory(const std::filesystem::path& root) {
  const std::size_t kib = number_in(root / "proc/meminfo", "MemAvailable:");
  return std::min(kib == kUnlimited ? kUnlimited : kib * 1024, control_group_room(root));
}

void* detail::allocate_cpu(std::size_t bytes, MemoryKind kind) {
  // Large blocks are mapped separately and return to the system when freed. By default glibc raises this
  // threshold after every large free, and memory that only the kernel timings needed would stay resident.
  static const bool fixed = mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLarge)) != 0;
  static_cast<void>(fixed);
  const std::size_t available = bytes >= kPromised ? available_cpu_memory() : kUnlimited;
  const std::size_t alignment = bytes >= kLarge ? kPage : kAlignment;
  // Rounding up a size near the largest one would wrap around.
  const bool representable = bytes <= kUnlimited - kPage;
  void* data = representable && bytes <= available ? std::aligned_alloc(alignment, align_up(bytes, alignment))
                                                   : nullptr;
  if (data == nullptr) {
    throw MemoryError(fmt::format("{}: out of memory: allocation of {} bytes failed, {} bytes are available",
                                  to_string(Device{}), bytes, available_cpu_memory()));
  }
  if (kind == MemoryKind::untouched) return data;
  // With small pages the first touch of a large arena takes longer than planning its contents. If the system
  // refuses huge pages, allocation is slower but correct.
  if (bytes >= kLarge) madvise(data, align_up(bytes, alignment), MADV_HUGEPAGE);
  std::memset(data, 0, align_up(bytes, alignment));
  return data;
}

}  // namespace lockstep
