// SPDX-License-Identifier: Apache-2.0
#include "data/sets/verify.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"

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
    text +=
        "\nrepair or remove these files; with data.verify = \"none\" damaged samples are left out of their "
        "batches";
    if (exit_code_ == exit_code::io) throw IoError(text);
    throw DataError(text);
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
  std::atomic<std::int64_t> next = begin;
  Faults faults;
  const int rank = current_rank();

  const auto work = [&](bool tells) {
    const RankScope scope(rank);
    std::vector<std::uint8_t> image(
        options.extent == Verify::all ? static_cast<std::size_t>(dataset.image_shape().bytes()) : 0);
    const ImageShape shape = dataset.image_shape();
    std::vector<std::uint8_t> mask(dataset.has_masks() ? static_cast<std::size_t>(shape.height * shape.width)
                                                       : 0);
    for (std::int64_t sample = next++; sample < end; sample = next++) {
      try {
        if (options.extent == Verify::all) {
          dataset.read(sample, image);
          if (dataset.has_masks()) dataset.read_mask(sample, mask);
        } else {
          dataset.probe(sample);
        }
      } catch (const DataError& error) {
        faults.add(sample, error);
      } catch (const IoError& error) {
        faults.add(sample, error);
      }
      if (tells) options.told_progress(std::min(next.load(), end) - begin, end - begin);
    }
  };
  if (options.told_progress) options.told_progress(0, end - begin);
  std::vector<std::future<void>> threads;
  for (int i = 1; i < options.threads; ++i) threads.push_back(std::async(std::launch::async, work, false));
  work(options.told_progress != nullptr);
  for (std::future<void>& thread : threads) thread.get();
  faults.throw_if_any();
  if (dataset.damaged() > 0) {
    log::warning("{} {} damaged, and decoded as far as possible", counted(dataset.damaged(), "sample"),
                 dataset.damaged() == 1 ? "is" : "are");
  }
}

}  // namespace lockstep
