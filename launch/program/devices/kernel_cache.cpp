// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/kernel_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "core/text/json_text.h"
#include "launch/train/whole_number.h"

namespace lockstep {
namespace {

using CacheJson = nlohmann::json;
using Choices = std::map<std::string, KernelChoice>;

// An advisory file lock, held for the lifetime of the object. Holders keep it for milliseconds, so the
// attempts end after about 2 s: the file system then does not support locks, or the holder is stopped.
class BriefLock {
 public:
  explicit BriefLock(const std::filesystem::path& path)
      : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    constexpr int kTries = 1000;
    for (int i = 0; !held_ && descriptor_ >= 0 && i < kTries; ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      held_ = flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
      if (!held_ && errno != EWOULDBLOCK && errno != EINTR) break;
    }
  }
  ~BriefLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  BriefLock(const BriefLock&) = delete;
  BriefLock& operator=(const BriefLock&) = delete;

  bool held() const { return held_; }

 private:
  int descriptor_;
  bool held_ = false;
};

CacheJson to_json(const Choices& choices) {
  CacheJson object = CacheJson::object();
  for (const auto& [key, choice] : choices) {
    object[key] = {{"kernel", choice.candidate},
                   {"microseconds", choice.microseconds},
                   {"first_microseconds", choice.first_microseconds},
                   {"waited", choice.waited},
                   {"contests", choice.contests},
                   {"chosen_at", choice.chosen_at}};
  }
  return object;
}

// Refuses deeper nesting than kernel choices have while parsing. Throws DataError, also for invalid JSON.
CacheJson parsed_choices(auto&& text) try {
  return CacheJson::parse(text, depth_limit(3));
} catch (const CacheJson::exception& error) {
  throw DataError(error.what());
}

constexpr std::int64_t kMostContests = 1'000'000;
constexpr std::int64_t kLatest = 253'370'764'800;  // the year 9999, in seconds since 1970

// Files of earlier versions have neither first_microseconds nor chosen_at. Throws DataError.
Choices from_json(const CacheJson& object) try {
  Choices choices;
  for (const auto& [key, choice] : object.items()) {
    choices[key] = {
        .candidate = choice.at("kernel").get<std::string>(),
        .microseconds = choice.at("microseconds").get<double>(),
        .first_microseconds = choice.value("first_microseconds", 0.0),
        .waited = choice.at("waited").get<double>(),
        .contests = static_cast<int>(whole_number(choice, "contests", 0, kMostContests)),
        .chosen_at = choice.contains("chosen_at") ? whole_number(choice, "chosen_at", 0, kLatest) : 0};
  }
  return choices;
} catch (const CacheJson::exception& error) {
  throw DataError(error.what());
}

// Null without the file. Throws DataError for a file that holds no kernel choices.
CacheJson read_document(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) return {};
  CacheJson document = parsed_choices(stream);
  if (!document.is_object() || !document.contains("choices")) throw DataError("the key choices is missing");
  return document;
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

KernelChoices kernel_choices(const KernelSettings& settings) {
  return KernelChoices(settings.choose == "time" ? ChooseBy::time : ChooseBy::name, settings.choose);
}

std::filesystem::path kernel_cache_folder(const KernelSettings& settings) {
  if (settings.cache == "auto") return default_kernel_cache();
  return settings.cache == "none" ? std::filesystem::path() : std::filesystem::path(settings.cache);
}

KernelCache::KernelCache(std::filesystem::path folder, std::string identity)
    : folder_(std::move(folder)), identity_(std::move(identity)) {
  if (folder_.empty()) return;
  file_ = folder_ / fmt::format("kernels-{:016x}.json", XXH3_64bits(identity_.data(), identity_.size()));
}

Choices KernelCache::read() const {
  const CacheJson document = read_document(file_);
  if (document.is_null()) return {};
  return document.value("identity", CacheJson()) == identity_ ? from_json(document["choices"]) : Choices();
}

Choices KernelCache::read_or_warn() const {
  try {
    return read();
  } catch (const DataError& error) {
    log::warning("{}: not a file of kernel choices ({}); kernels are timed again", file_.string(),
                 error.what());
    return {};
  }
}

// Another process may have added choices meanwhile, even for the same keys. Of two choices the first settled
// one is kept, or the less disturbed. A known choice for a key in `made` is unusable, so it is not kept.
void KernelCache::add(const Choices& made, const Choices& known) const {
  const BriefLock lock(folder_ / "lock");
  if (!lock.held())
    log::warning("{}: cannot be locked; kernel choices that another job adds now may be lost",
                 file_.string());
  Choices choices;
  try {
    choices = read();
  } catch (const DataError&) {
    // read_or_warn() has warned about it.
  }
  for (const auto& [key, choice] : made) {
    const auto [there, is_new] = choices.emplace(key, choice);
    const auto unusable = known.find(key);
    if (unusable != known.end() && unusable->second.candidate == there->second.candidate)
      there->second = choice;
    if (is_new || there->second.settled()) continue;
    const int contests = std::max(there->second.contests, choice.contests);
    if (choice.waited < there->second.waited) there->second = choice;
    there->second.contests = contests;
  }
  try {
    write_atomically(file_, CacheJson{{"identity", identity_}, {"choices", to_json(choices)}}.dump(1) + "\n");
  } catch (const IoError& error) {
    log::warning("{}; the next start times its kernels again, and may differ in rounding", error.what());
  }
}

void KernelCache::use(KernelChoices& choices, const std::function<void()>& plan) const {
  if (file_.empty()) return plan();
  std::error_code error;
  std::filesystem::create_directories(folder_, error);  // on failure, writing the file fails and warns
  for (const auto& [key, choice] : read_or_warn())
    if (choice.settled())
      choices.keep(key, choice);
    else
      choices.keep_in_doubt(key, choice);
  const Choices known = choices.kept();
  plan();
  Choices made = choices.kept();
  std::erase_if(made, [&](const auto& choice) {
    const auto before = known.find(choice.first);
    return before != known.end() && before->second.candidate == choice.second.candidate;
  });
  if (!made.empty()) add(made, known);
}

std::vector<KeptKernels> kept_kernels(const std::filesystem::path& folder) {
  std::vector<KeptKernels> all;
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::filesystem::directory_entry& entry = *at;
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("kernels-") || !name.ends_with(".json") || !entry.is_regular_file(ignored))
      continue;
    try {
      const CacheJson document = read_document(entry.path());
      if (document.is_null()) continue;
      const CacheJson identity = document.value("identity", CacheJson());
      if (!identity.is_string()) throw DataError("the key identity is missing");
      all.push_back({.file = entry.path(),
                     .identity = identity.get<std::string>(),
                     .choices = from_json(document["choices"])});
    } catch (const DataError& damage) {
      log::warning("{}: not a file of kernel choices ({})", entry.path().string(), damage.what());
    }
  }
  std::ranges::sort(all, {}, &KeptKernels::file);
  return all;
}

std::string to_text(const KernelChoices& choices) { return to_json(choices.kept()).dump(); }

void from_text(const std::string& text, KernelChoices& choices) {
  try {
    for (const auto& [key, choice] : from_json(parsed_choices(text))) choices.keep(key, choice);
  } catch (const DataError& error) {
    throw DataError(fmt::format("kernel choices: {}", error.what()));
  }
}

}  // namespace lockstep
