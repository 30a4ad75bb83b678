// SPDX-License-Identifier: Apache-2.0
//
// Connects libFuzzer with a target. --seeds=FOLDER, which libFuzzer ignores, writes the initial corpus.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

struct OwnFolder {
  OwnFolder() {
    const char* parent = std::getenv("TMPDIR");
    std::string name = std::string(parent != nullptr ? parent : "/dev/shm") + "/lockstep_fuzz_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~OwnFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

// True if the message still has control characters after printable().
bool orders_a_terminal(std::string_view message) {
  std::string shown = printable(message);
  std::erase_if(shown, [](char c) { return c == '\n' || c == '\t'; });
  return has_control_characters(shown);
}

[[noreturn]] void found(const char* kind, const char* what) {
  std::fprintf(stderr, "finding: %s: %s\n", kind, what);
  std::abort();
}

void write_seeds(const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  int number = 0;
  for (const std::string& seed : seeds())
    std::ofstream(to / fmt::format("seed_{:02}", number++), std::ios::binary) << seed;
}

}  // namespace

void require(bool kept, std::string_view promise) {
  if (!kept) throw Broken(std::string(promise));
}

const std::filesystem::path& folder() {
  static const OwnFolder own;
  return own.path;
}

std::filesystem::path put(const std::filesystem::path& name, std::string_view bytes) {
  const std::filesystem::path path = folder() / name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) {
    std::filesystem::create_directories(path.parent_path());
    file.open(path, std::ios::binary | std::ios::trunc);
  }
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  require(file.flush().good(), "cannot write the file " + path.string());
  return path;
}

std::uint8_t Parts::byte() {
  if (rest_.empty()) return 0;
  const auto first = static_cast<std::uint8_t>(rest_.front());
  rest_.remove_prefix(1);
  return first;
}

std::string_view Parts::text() {
  const std::size_t bytes = byte() | std::size_t{byte()} << 8;
  const std::string_view text = rest_.substr(0, bytes);
  rest_.remove_prefix(text.size());
  return text;
}

std::string Parts::of_text(std::string_view text) {
  const std::string size = {static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return size + std::string(text);
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kSeeds = "--seeds=";
  lockstep::log::set_level(lockstep::log::Level::off);
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (!argument.starts_with(kSeeds)) continue;
    lockstep::fuzz::write_seeds(argument.substr(kSeeds.size()));
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  try {
    fuzz::try_input({reinterpret_cast<const char*>(data), size});
  } catch (const fuzz::Broken& broken) {
    fuzz::found("violated requirement", broken.what());
  } catch (const Error& error) {
    if (error.exit_code() == exit_code::failed) fuzz::found("failed check", error.what());
    if (fuzz::orders_a_terminal(error.what())) fuzz::found("control characters in a message", error.what());
  } catch (const std::exception& exception) {
    fuzz::found("uncaught exception", exception.what());
  }
  return 0;
}
