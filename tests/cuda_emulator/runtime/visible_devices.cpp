// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/runtime/visible_devices.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::emulator {
namespace {

constexpr std::string_view kPrefix = "GPU-";

// In the format of nvidia-smi.
std::string text_of(const cudaUUID_t& uuid) {
  std::string text(kPrefix);
  for (int i = 0; i < 16; ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

std::optional<int> place_by_uuid(std::string_view item, int devices) {
  std::optional<int> found;
  for (int place = 0; place < devices; ++place) {
    if (!text_of(uuid_of(place)).starts_with(item)) continue;
    if (found) return std::nullopt;  // the prefix is not unique
    found = place;
  }
  return found;
}

// The number at the start of the item: CUDA reads "1gpu" as 1.
std::optional<int> place_by_index(std::string_view item, int devices) {
  int index = 0;
  std::size_t digits = 0;
  while (digits < item.size() && std::isdigit(static_cast<unsigned char>(item[digits])) != 0 && digits < 9)
    index = index * 10 + (item[digits++] - '0');
  if (digits == 0 || index >= devices) return std::nullopt;
  return index;
}

std::string_view without_spaces(std::string_view item) {
  while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
  while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
  return item;
}

}  // namespace

cudaUUID_t uuid_of(int place) {
  cudaUUID_t uuid = {};
  std::memcpy(uuid.bytes, "emulated GPU", 12);
  std::memcpy(uuid.bytes + 12, &place, sizeof place);
  return uuid;
}

std::vector<int> visible_places(const char* list, int devices) {
  std::vector<int> places;
  if (list == nullptr) {
    places.resize(static_cast<std::size_t>(devices));
    std::iota(places.begin(), places.end(), 0);
    return places;
  }
  std::string_view left = list;
  const bool by_uuid = without_spaces(left).starts_with(kPrefix);
  while (true) {
    const std::string_view item = without_spaces(left.substr(0, left.find(',')));
    if (item.starts_with(kPrefix) != by_uuid) return places;
    const std::optional<int> place = by_uuid ? place_by_uuid(item, devices) : place_by_index(item, devices);
    if (!place) return places;
    if (std::ranges::find(places, *place) != places.end()) return {};
    places.push_back(*place);
    if (left.find(',') == std::string_view::npos) return places;
    left.remove_prefix(left.find(',') + 1);
  }
}

}  // namespace lockstep::emulator
