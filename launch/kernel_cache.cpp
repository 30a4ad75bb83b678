// SPDX-License-Identifier: Apache-2.0
#include "launch/kernel_cache.h"

#include <cstdlib>
#include <fstream>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/log.h"

namespace lockstep {
namespace {

using nlohmann::json;

// An advisory lock on a file, for as long as this lives; none where the file cannot be opened.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path)
      : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (descriptor_ >= 0) flock(descriptor_, LOCK_EX);
  }
  ~FileLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

json choices_json(const KernelChoices& choices) {
  json object = json::object();
  for (const auto& [key, choice] : choices.kept()) {
    object[key] = {{"kernel", choice.candidate}, {"microseconds", choice.microseconds}};
  }
  return object;
}

void keep_all(const json& object, KernelChoices& choices) {
  for (const auto& [key, choice] : object.items()) {
    choices.keep(key, {.candidate = choice.at("kernel").get<std::string>(),
                       .microseconds = choice.at("microseconds").get<double>()});
  }
}

}  // namespace

std::filesystem::path default_kernel_cache() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache / "lockstep";
  if (const auto home = variable("HOME"); !home.empty()) return home / ".cache" / "lockstep";
  return {};
}

KernelCache::KernelCache(std::filesystem::path folder, std::string identity)
    : folder_(std::move(folder)), identity_(std::move(identity)) {
  if (folder_.empty()) return;
  file_ = folder_ / fmt::format("kernels-{:016x}.json", XXH3_64bits(identity_.data(), identity_.size()));
}

void KernelCache::load(KernelChoices& choices) const {
  std::ifstream stream(file_);
  if (!stream) return;
  try {
    const json document = json::parse(stream);
    if (document.at("identity") != identity_) return;
    KernelChoices read;
    keep_all(document.at("choices"), read);
    for (const auto& [key, choice] : read.kept()) choices.keep(key, choice);
  } catch (const json::exception& error) {
    log::warning("{}: not a file of kernel choices ({}); timing again", file_.string(), error.what());
  }
}

void KernelCache::save(const KernelChoices& choices) const {
  const std::filesystem::path partial = file_.string() + ".new";
  std::ofstream stream(partial);
  stream << json{{"identity", identity_}, {"choices", choices_json(choices)}}.dump(1) << "\n";
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(partial, file_, error);
  if (!stream || error) {
    log::warning("{}: cannot keep kernel choices; the next start times again, and may differ in rounding",
                 file_.string());
  }
}

void KernelCache::use(KernelChoices& choices, const std::function<void()>& plan) {
  if (file_.empty()) return plan();
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const FileLock lock(folder_ / "lock");
  load(choices);
  const std::size_t known = choices.kept().size();
  plan();
  if (choices.kept().size() != known) save(choices);
}

std::string to_text(const KernelChoices& choices) { return choices_json(choices).dump(); }

void from_text(const std::string& text, KernelChoices& choices) {
  try {
    keep_all(json::parse(text), choices);
  } catch (const json::exception& error) {
    throw DataError(fmt::format("kernel choices: {}", error.what()));
  }
}

}  // namespace lockstep
