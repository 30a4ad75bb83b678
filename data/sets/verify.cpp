// SPDX-License-Identifier: Apache-2.0
#include "data/sets/verify.h"

#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "data/sets/read_in_threads.h"

namespace lockstep {
namespace {

constexpr std::size_t kNamedFiles = 5;

// Collects the errors of samples that cannot be read. Thread-safe.
class Faults {
 public:
  void add(std::int64_t sample, const Error& error) {
    const std::lock_guard lock(mutex_);
    ++count_;
    if (error.exit_code() != exit_code::io) exit_code_ = exit_code::data;
    first_.emplace(sample, error.what());
    if (first_.size() > kNamedFiles) first_.erase(std::prev(first_.end()));
  }

  void throw_if_any() const {
    if (count_ == 0) return;
    std::string text = fmt::format("{} cannot be read:", counted(count_, "sample"));
    for (const auto& [sample, reason] : first_) text += "\n  " + reason;
    if (count_ > first_.size()) text += fmt::format("\n  and {} more", count_ - first_.size());
    text += "\nrepair or remove these files";
    if (exit_code_ == exit_code::io) throw IoError(text);
    throw DataError(
        text +
        "; with data.verify = \"none\" and data.on_error = \"leave_out\" damaged samples are left "
        "out of their batches");
  }

 private:
  std::mutex mutex_;
  std::size_t count_ = 0;
  int exit_code_ = exit_code::io;
  std::map<std::int64_t, std::string> first_;  // by sample
};

}  // namespace

void verify(const Dataset& dataset, const VerifyOptions& options) {
  CHECK(options.shard.rank >= 0 && options.shard.rank < options.shard.size && options.threads > 0,
        "shard {} of {}, {} threads", options.shard.rank, options.shard.size, options.threads);
  if (options.extent == Verify::nothing || dataset.verified()) return;
  const auto first_of = [&](std::int64_t rank) { return dataset.size() * rank / options.shard.size; };
  const std::int64_t end = first_of(options.shard.rank + 1);
  const std::int64_t begin = first_of(options.shard.rank);
  Faults faults;
  read_in_threads(
      {.begin = begin, .end = end, .threads = options.threads, .told_progress = options.told_progress}, [&] {
        const ImageShape shape = dataset.image_shape();
        const bool whole = options.extent == Verify::all, masks = dataset.has_masks();
        std::vector<std::uint8_t> image(whole ? static_cast<std::size_t>(shape.bytes()) : 0);
        std::vector<std::uint8_t> mask(masks ? static_cast<std::size_t>(shape.height * shape.width) : 0);
        return [&, whole, masks, image, mask](std::int64_t sample) mutable {
          try {
            if (!whole) return dataset.probe(sample);
            dataset.read(sample, image);
            if (masks) dataset.read_mask(sample, mask);
          } catch (const DataError& error) {
            faults.add(sample, error);
          } catch (const IoError& error) {
            faults.add(sample, error);
          }
        };
      });
  faults.throw_if_any();
  if (dataset.damaged() > 0) {
    log::warning("{} {} damaged, and decoded as far as possible", counted(dataset.damaged(), "sample"),
                 dataset.damaged() == 1 ? "is" : "are");
  }
}

}  // namespace lockstep
