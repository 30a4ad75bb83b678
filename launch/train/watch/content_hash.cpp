// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/content_hash.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"

namespace lockstep {

ContentHash::ContentHash()
    : state_(XXH3_createState(), [](void* state) { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }) {
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void ContentHash::add(const void* data, std::size_t bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_.get()), data, bytes);
}

std::string ContentHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string hash_of(std::string_view text) {
  ContentHash hash;
  hash.add(text);
  return hash.hex();
}

std::string hash_of_file(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto fail = [&](int error) {
    throw IoError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(error)));
  };
  if (descriptor < 0) fail(errno);
  ContentHash hash;
  std::vector<char> part(std::size_t{1} << 20);
  int error = 0;
  for (;;) {
    const ssize_t got = ::read(descriptor, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    hash.add(part.data(), static_cast<std::size_t>(got));
  }
  close(descriptor);
  if (error != 0) fail(error);
  return hash.hex();
}

}  // namespace lockstep
