// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/runtime/device_memory.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kReadyAtOnce = std::size_t{4} << 20;
constexpr std::size_t kReturned = std::size_t{8}
                                  << 20;  // blocks of this size return to the system when they are freed
constexpr std::size_t kMostReserved = std::size_t{16} << 40;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Access rights of this thread for memory with the key.
#if defined(PKEY_DISABLE_ACCESS)
int new_key() { return pkey_alloc(0, PKEY_DISABLE_ACCESS); }
int rights(int key) { return pkey_get(key); }
void set_rights(int key, int rights_) { pkey_set(key, static_cast<unsigned>(rights_)); }
int give_key(void* data, std::size_t bytes, int key) {
  return pkey_mprotect(data, bytes, PROT_READ | PROT_WRITE, key);
}
constexpr int kNoAccess = PKEY_DISABLE_ACCESS;
#else
int new_key() { return -1; }
int rights(int) { return 0; }
void set_rights(int, int) {}
int give_key(void*, std::size_t, int) { return -1; }
constexpr int kNoAccess = 1;
#endif

// Read by the handler of SIGSEGV.
std::uintptr_t arena_begin = 0;
std::uintptr_t arena_end = 0;
struct sigaction action_before = {};

// Reports the access. Then the access is repeated under the previous signal action.
void report(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (address >= arena_begin && address < arena_end) {
    char text[320];
    const int length = std::snprintf(
        text, sizeof text,
        "emulated GPU: process %d: host code touches device memory, or device work touches memory outside "
        "all "
        "allocations, at %p. Copy it with cudaMemcpyAsync (LOCKSTEP_EMULATED_HOST_ACCESS=allowed permits "
        "it).\n",
        static_cast<int>(getpid()), info->si_addr);
    if (write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) _exit(1);
  }
  sigaction(SIGSEGV, &action_before, nullptr);
}

void install_handler() {
  struct sigaction action = {};
  action.sa_sigaction = report;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &action_before);
}

// A range of addresses that is reserved once. Its first part is memory, in used and free ranges.
class Arena {
 public:
  enum class Way { unprotected, keys, pages };

  Arena() {
    const HostAccess access = machine().host_access;
    if (access == HostAccess::allowed || !reserve()) return;
    if (access == HostAccess::denied) key_ = new_key();
    way_ = key_ >= 0 ? Way::keys : Way::pages;
    install_handler();
  }

  Way way() const { return way_; }
  int key() const { return key_; }

  // bytes must be whole pages.
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto fits = [bytes](const auto& range) { return range.second >= bytes; };
    auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found == free_.end()) {
      if (!make_ready(bytes)) return nullptr;
      found = std::find_if(free_.begin(), free_.end(), fits);
    }
    const auto [begin, all] = *found;
    free_.erase(found);
    if (all > bytes) free_.emplace(begin + bytes, all - bytes);
    return begin_ + begin;
  }

  void free(void* data, std::size_t bytes) {
    if (bytes >= kReturned) madvise(data, bytes, MADV_DONTNEED);
    const std::lock_guard lock(mutex_);
    add_free(static_cast<std::size_t>(static_cast<std::byte*>(data) - begin_), bytes);
  }

  // For Way::pages: begins and ends device work of any thread.
  void begin_work() {
    const std::lock_guard lock(mutex_);
    ++working_;
    if (!open_) protect(true);
  }
  void end_work() {
    const std::lock_guard lock(mutex_);
    --working_;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (open_ && working_ == 0) protect(false);
  }

 private:
  bool reserve() {
    const std::size_t all = static_cast<std::size_t>(machine().devices) * machine().memory_bytes;
    const std::size_t wanted = std::min(kMostReserved, 2 * all + (std::size_t{1} << 30));
    reserved_ = wanted / kPage * kPage;
    void* found = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return false;
    begin_ = static_cast<std::byte*>(found);
    arena_begin = reinterpret_cast<std::uintptr_t>(begin_);
    arena_end = arena_begin + reserved_;
    return true;
  }

  bool make_ready(std::size_t bytes) {
    const std::size_t more = std::min(std::max(bytes, kReadyAtOnce), reserved_ - ready_);
    if (more < bytes) return false;
    std::byte* from = begin_ + ready_;
    if (way_ == Way::keys && give_key(from, more, key_) != 0) return false;
    if (way_ == Way::pages && open_ && mprotect(from, more, PROT_READ | PROT_WRITE) != 0) return false;
    add_free(ready_, more);
    ready_ += more;
    return true;
  }

  void add_free(std::size_t begin, std::size_t bytes) {
    auto next = free_.lower_bound(begin);
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        bytes += before->second;
        free_.erase(before);
      }
    }
    if (next != free_.end() && begin + bytes == next->first) {
      bytes += next->second;
      free_.erase(next);
    }
    free_.emplace(begin, bytes);
  }

  void protect(bool open) {
    if (ready_ > 0 && mprotect(begin_, ready_, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
      std::perror("emulated GPU: mprotect of device memory");
      std::abort();
    }
    open_ = open;
  }

  Way way_ = Way::unprotected;
  int key_ = -1;
  std::byte* begin_ = nullptr;
  std::size_t reserved_ = 0;

  std::mutex mutex_;
  std::size_t ready_ = 0;                         // bytes
  std::map<std::size_t, std::size_t> free_ = {};  // sizes in bytes by start; no two are adjacent
  int working_ = 0;
  bool open_ = false;
};

Arena& arena() {
  static Arena& made = *new Arena;  // threads of streams use it until the process ends
  return made;
}

// ThreadSanitizer must not see the creation of the arena.
Arena::Way way() { return kSanitized ? Arena::Way::unprotected : arena().way(); }

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

void* allocate_device_memory(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  if (way() != Arena::Way::unprotected) return arena().allocate(whole_pages(bytes));
  return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

void free_device_memory(void* data, std::size_t bytes) {
  if (way() != Arena::Way::unprotected) return arena().free(data, whole_pages(bytes));
  std::free(data);
}

DeviceWork::DeviceWork() {
  if (way() == Arena::Way::pages) arena().begin_work();
  if (way() != Arena::Way::keys) return;
  before_ = rights(arena().key());
  set_rights(arena().key(), 0);
}
DeviceWork::~DeviceWork() {
  if (way() == Arena::Way::pages) arena().end_work();
  if (way() == Arena::Way::keys) set_rights(arena().key(), before_);
}

HostCode::HostCode() {
  if (way() == Arena::Way::pages) {
    arena().end_work();
    arena().close();
  }
  if (way() != Arena::Way::keys) return;
  before_ = rights(arena().key());
  set_rights(arena().key(), kNoAccess);
}
HostCode::~HostCode() {
  if (way() == Arena::Way::pages) arena().begin_work();
  if (way() == Arena::Way::keys) set_rights(arena().key(), before_);
}

void deny_host_access() {
  if (way() == Arena::Way::pages) arena().close();
}

}  // namespace lockstep::emulator
