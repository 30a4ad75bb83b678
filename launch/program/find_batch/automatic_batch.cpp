// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/automatic_batch.h"

#include "core/log.h"
#include "launch/program/find_batch/find_batch.h"
#include "launch/program/find_batch/report.h"

namespace lockstep {
namespace {

constexpr double kSeconds = 30;  // time budget of the search, approximate

std::int64_t found_batch(World& world, Communicator& control, const Config& config,
                         const Registry& registry) {
  Config first = config;
  first.loader.batch = kFirstBatch;
  const FindBatchOptions options{
      .seconds = kSeconds, .confirms = false, .proves_most = false, .measures_noise = false};
  const FindBatchTeller teller{
      .measured = [](const BatchFigure& figure) { log::info("{}", batch_line(figure)); }};
  const FoundBatch found = find_batch(world, control, first, registry, options, teller);
  const std::int64_t batch = smallest_fast_batch(found.figures)->batch;
  log::info(
      "train.batch = \"auto\": using batch {}, the smallest that reaches {:.0f} % of the highest samples/s "
      "(found in {:.0f} s)",
      batch, 100 * BatchSearch::kFast, found.seconds);
  return batch;
}

}  // namespace

Command with_batch_found(World& world, Communicator& control, const Command& command, const Config& config,
                         const ResumeFlags& resume) {
  std::string batch = saved_setting(control, config, resume, command.registry, "train.batch");
  if (batch.empty()) batch = std::to_string(found_batch(world, control, config, command.registry));
  Command found = command;
  found.overrides.push_back("train.batch=" + batch);
  return found;
}

}  // namespace lockstep
