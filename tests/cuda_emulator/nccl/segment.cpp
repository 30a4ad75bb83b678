// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/segment.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/cuda_emulator/nccl/errors.h"

namespace lockstep::emulator {
namespace {

constexpr std::size_t kPage = 4096;

constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// The contents of an id.
struct Address {
  long process = 0;
  int file = -1;
  unsigned long long secret = 0;
};

constexpr const char* kForm = "emulated NCCL %ld %d %llx";

Address read_address(const ncclUniqueId& id) {
  Address address;
  const std::string text(id.internal, strnlen(id.internal, sizeof id.internal));
  if (std::sscanf(text.c_str(), kForm, &address.process, &address.file, &address.secret) != 3) {
    throw NcclError(ncclInvalidArgument, "the id was not created by ncclGetUniqueId");
  }
  return address;
}

// The open files of ids that this process created.
struct OpenFiles {
  std::mutex mutex;
  std::map<unsigned long long, int> by_secret;
};

OpenFiles& open_files() {
  static OpenFiles& files = *new OpenFiles;
  return files;
}

unsigned long long random_secret() {
  std::random_device random;
  return (static_cast<unsigned long long>(random()) << 32) | random();
}

[[noreturn]] void fail(const char* action) {
  throw NcclError(ncclSystemError,
                  fmt::format("cannot {} the memory that ranks share: {}", action, strerror(errno)));
}

void* map(int file, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) fail("map");
  return memory;
}

// The file of an id, while it is open here.
class File {
 public:
  explicit File(const Address& address)
      : file_(::open(fmt::format("/proc/{}/fd/{}", address.process, address.file).c_str(),
                     O_RDWR | O_CLOEXEC)) {
    unsigned long long secret = 0;
    const bool found = file_ >= 0 && pread(file_, &secret, sizeof secret, 0) == sizeof secret;
    if (found && secret == address.secret) return;
    if (file_ >= 0) ::close(file_);
    throw NcclError(ncclSystemError,
                    fmt::format("process {}, which created the communicator's id, has ended, or all ranks "
                                "of the id have already joined",
                                address.process));
  }
  ~File() { ::close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

// The first rank sets the number of ranks.
void agree_on_ranks(const File& file, int ranks) {
  auto* meeting = static_cast<Meeting*>(map(file.get(), kPage));
  std::uint32_t before = 0;
  const auto mine = static_cast<std::uint32_t>(ranks);
  const bool agreed = meeting->ranks.compare_exchange_strong(before, mine) || before == mine;
  if (!agreed) meeting->refused = 1;
  munmap(meeting, kPage);
  if (!agreed) {
    throw NcclError(ncclInvalidArgument,
                    fmt::format("this rank expects {} ranks, another rank {}", ranks, before));
  }
}

}  // namespace

ncclUniqueId Segment::create() {
  const int file = memfd_create("emulated_nccl", MFD_CLOEXEC);
  if (file < 0) fail("create");
  const unsigned long long secret = random_secret();
  if (ftruncate(file, kPage) != 0) fail("size");
  void* memory = map(file, kPage);
  static_cast<Meeting*>(memory)->secret = secret;
  munmap(memory, kPage);
  const std::lock_guard lock(open_files().mutex);
  open_files().by_secret[secret] = file;
  ncclUniqueId id = {};
  std::snprintf(id.internal, sizeof id.internal, kForm, static_cast<long>(getpid()), file, secret);
  return id;
}

Segment::Segment(const ncclUniqueId& id, int ranks)
    : ranks_(ranks), bytes_(slots_offset() + static_cast<std::size_t>(ranks) * 2 * kChunkBytes) {
  const File file(read_address(id));
  agree_on_ranks(file, ranks);
  if (ftruncate(file.get(), static_cast<off_t>(bytes_)) != 0) fail("size");  // all ranks set the same size
  memory_ = map(file.get(), bytes_);
}

Segment::~Segment() { munmap(memory_, bytes_); }

std::size_t Segment::slots_offset() const {
  return whole_pages(sizeof(Meeting) + static_cast<std::size_t>(ranks_) * sizeof(Member));
}

Member& Segment::member(int rank) const {
  return reinterpret_cast<Member*>(static_cast<std::byte*>(memory_) + sizeof(Meeting))[rank];
}

std::byte* Segment::slot(int rank, int parity) const {
  const auto index = static_cast<std::size_t>(2 * rank + parity);
  return static_cast<std::byte*>(memory_) + slots_offset() + index * kChunkBytes;
}

void Segment::close(const ncclUniqueId& id) {
  const std::lock_guard lock(open_files().mutex);
  const auto found = open_files().by_secret.find(read_address(id).secret);
  if (found == open_files().by_secret.end()) return;
  ::close(found->second);
  open_files().by_secret.erase(found);
}

void Segment::wake_all() const {
  syscall(SYS_futex, &meeting().passed, FUTEX_WAKE, ranks_, nullptr, nullptr, 0);
}

void Segment::sleep(std::uint32_t seen, std::chrono::milliseconds longest) const {
  const timespec time = {.tv_sec = longest.count() / 1000, .tv_nsec = longest.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &meeting().passed, FUTEX_WAIT, seen, &time, nullptr, 0);
}

}  // namespace lockstep::emulator
