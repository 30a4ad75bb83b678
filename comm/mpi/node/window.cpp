// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/node/window.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>

#include <sys/statvfs.h>

#include "comm/mpi/session.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/tensor/buffer.h"

namespace lockstep {
namespace {

// Segments start on separate pages, so each is in its owner's NUMA memory.
constexpr std::size_t kPage = 4096;

// Kept free for other data in /dev/shm: records of collectives, MPI's own messages.
constexpr std::uint64_t kSpareBytes = std::uint64_t{2} << 20;

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> made{0};
  return ++made;
}

MPI_Win allocate_window(MPI_Comm node, std::size_t bytes, void** base) {
  MPI_Info info = MPI_INFO_NULL;
  MPI_CHECK(MPI_Info_create(&info));
  MPI_CHECK(MPI_Info_set(info, "alloc_shared_noncontig", "true"));
  MPI_Win window = MPI_WIN_NULL;
  const int code = MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, info, node, base, &window);
  MPI_CHECK(MPI_Info_free(&info));
  if (code != MPI_SUCCESS) {
    throw ConfigError(
        fmt::format("rank {}: cannot allocate {} bytes of shared memory for each rank of this node; make "
                    "/dev/shm larger (containers often have 64 MiB: set --shm-size)",
                    current_rank(), bytes));
  }
  return window;
}

}  // namespace

NodeWindow::NodeWindow(MPI_Comm node, std::size_t bytes)
    : node_(node), number_(next_number()), bytes_(bytes) {
  void* base = nullptr;
  window_ = allocate_window(node, align_up(bytes, kPage) + kPage, &base);
  // Page alignment is a hint to MPI, so each rank aligns its segment itself and sends the others its offset.
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  const std::uint64_t skip = align_up(address, kPage) - address;
  own_ = static_cast<std::byte*>(base) + skip;
  std::memset(own_, 0, align_up(bytes, kPage));  // touched first by its owner

  // A rank that has received all offsets knows that all segments are zeroed.
  int ranks = 0;
  MPI_CHECK(MPI_Comm_size(node, &ranks));
  std::vector<std::uint64_t> skips(static_cast<std::size_t>(ranks));
  MPI_CHECK(MPI_Allgather(&skip, 1, MPI_UINT64_T, skips.data(), 1, MPI_UINT64_T, node));
  for (int rank = 0; rank < ranks; ++rank) {
    MPI_Aint size = 0;
    int unit = 0;
    void* segment = nullptr;
    MPI_CHECK(MPI_Win_shared_query(window_, rank, &size, &unit, &segment));
    segments_.push_back(static_cast<std::byte*>(segment) + skips[static_cast<std::size_t>(rank)]);
  }
  // One epoch for the window's whole life; NodeBarrier orders the accesses in it.
  MPI_CHECK(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_));
}

void NodeWindow::free() {
  MPI_CHECK(MPI_Win_unlock_all(window_));
  MPI_CHECK(MPI_Win_free(&window_));
  own_ = nullptr;
}

bool fits_shared_memory(std::uint64_t free_bytes, int ranks, std::size_t bytes) {
  const std::uint64_t each = align_up(bytes, kPage) + 2 * kPage;
  if (free_bytes < kSpareBytes) return false;
  return (free_bytes - kSpareBytes) / static_cast<std::uint64_t>(ranks) >= each;
}

std::uint64_t free_shared_memory() {
  struct statvfs status = {};
  if (statvfs("/dev/shm", &status) != 0) return std::numeric_limits<std::uint64_t>::max();
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

bool NodeWindow::contains(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::less_equal<> not_after;
  return own_ != nullptr && not_after(own_, begin) && not_after(begin + bytes, own_ + bytes_);
}

}  // namespace lockstep
