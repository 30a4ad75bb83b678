// SPDX-License-Identifier: Apache-2.0
//
// XXH3-128 of bytes that come in pieces. It distinguishes contents and detects damage, but is no protection
// against deliberate tampering.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

class ContentHash {
 public:
  ContentHash();
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  // 32 hexadecimal digits: the hash of all bytes added so far.
  std::string hex() const;

 private:
  std::unique_ptr<void, void (*)(void*)> state_;
};

std::string hash_of(std::string_view text);
// Throws IoError.
std::string hash_of_file(const std::filesystem::path& path);

}  // namespace lockstep
