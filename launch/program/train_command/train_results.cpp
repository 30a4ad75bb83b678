// SPDX-License-Identifier: Apache-2.0
#include "launch/program/train_command/train_results.h"

#include <functional>
#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "core/text/enum_words.h"
#include "core/text/text.h"
#include "launch/program/network/export_facts.h"
#include "launch/train/digest.h"
#include "models/network_state.h"

namespace lockstep {

std::string digest_of(TrainJob& job) {
  return digest(job.training->network(), job.training->optimizer(), job.trainer->weight_average());
}

void save_evaluated(TrainJob& job, const Registry& registry, const std::filesystem::path& path,
                    SafetensorsOptions options) {
  TrainingSetup& training = *job.training;
  const ExportPrecision precision = job.config.export_precision;
  options.metadata.merge(to_metadata(export_facts(job.config, training.train_set(), registry)));
  std::vector<std::string> kept;
  job.trainer->with_evaluated_weights(
      [&] { kept = StateSnapshot(training.network()).save(path, options, stored_type(precision)); });
  if (kept.empty()) return;
  const bool one = kept.size() == 1;
  log::warning("{}: {} {} values outside the range of {} and {} fp32", path.string(), fmt::join(kept, ", "),
               one ? "has" : "have", word_of(precision), one ? "stays" : "stay");
}

Unwritten write_results(const Command& command, TrainJob& job, const std::string& digest) {
  Unwritten unwritten;
  std::vector<std::string> problems = job.report->problems();
  if (job.profiler && !job.profiler->problem().empty()) problems.push_back(job.profiler->problem());
  if (!job.best_keeper->problem().empty()) problems.push_back(job.best_keeper->problem());
  const auto write = [&](const std::string& path, const char* what, const std::function<void()>& work) {
    if (path.empty()) return;
    try {
      work();
      job.report->line(fmt::format("{} {}", what, path));
    } catch (const IoError& error) {
      problems.emplace_back(error.what());
      unwritten.results = true;
    }
  };
  write(command.export_, "weights are in", [&] { save_evaluated(job, command.registry, command.export_); });
  write(command.digest, "the digest is in", [&] { write_atomically(command.digest, digest + "\n"); });
  write(command.trace, "the trace is in", [&] {
    write_atomically(command.trace, job.trace.text);
    if (job.trace.dropped == 0) return;
    log::warning(
        "{} lacks {} because the buffers of the ranks are full: trace fewer steps (train.steps), or profile "
        "some steps (profile.active instead of --trace)",
        command.trace, counted(job.trace.dropped, "event"));
  });
  unwritten.problems = fmt::format("{}", fmt::join(problems, "; "));
  return unwritten;
}

}  // namespace lockstep
