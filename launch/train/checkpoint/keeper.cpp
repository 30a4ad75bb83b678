// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/keeper.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "core/text/json_text.h"
#include "launch/train/hold.h"

namespace lockstep {
namespace {

using PhaseJson = nlohmann::json;

// Indices into Wishes.
constexpr std::size_t kStop = 0, kSave = 1, kPhasesLeft = 2;

// A rank's wish is kMostPhases minus the phases it has done: the largest is that of the slowest rank.
constexpr std::int32_t kMostPhases = std::numeric_limits<std::int32_t>::max();

constexpr std::string_view kSetLargerEvery = "set a larger run.checkpoint_every";

StateSnapshotTaker::Shared shared_mode(const CheckpointKeeper::Parts& parts) {
  using Shared = StateSnapshotTaker::Shared;
  if (parts.host.rank() == 0) return Shared::takes;
  return parts.compares ? Shared::hashes : Shared::ignores;
}

// Calls Parts::waiting for its lifetime.
class Waiting {
 public:
  explicit Waiting(const CheckpointKeeper::Parts& parts) : parts_(parts) { parts_.waiting(true); }
  ~Waiting() { parts_.waiting(false); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const CheckpointKeeper::Parts& parts_;
};

// A resumed training does not write these lines again. Without them the checkpoint is still of use.
void sync_lines(const std::vector<std::filesystem::path>& files) {
  for (const std::filesystem::path& file : files) {
    try {
      sync_file(file);
    } catch (const IoError& error) {
      log::warning("{}; a crash of the machine may remove its last lines", error.what());
    }
  }
}

// The result of a thread as JSON: the files it wrote, or the problem.
std::string result_text(const std::function<std::vector<ShardFile>()>& work) {
  PhaseJson result = {{"problem", ""}, {"files", PhaseJson::array()}};
  try {
    for (const ShardFile& file : work())
      result["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.xxh3}});
  } catch (const std::exception& error) {
    result["problem"] = as_error(error).what();
  }
  return dumped(result);
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(const Parts& parts, const CheckpointSettings& settings,
                                   const std::filesystem::path& run_dir, Manifest manifest)
    : parts_(parts),
      settings_(settings),
      store_(run_dir),
      manifest_(std::move(manifest)),
      agreement_(parts.host),
      snapshot_(parts.device, shared_mode(parts)),
      last_ns_(parts_.clock()) {
  run_agreed(parts_.host, [&] {
    if (parts_.host.rank() != 0) return;
    store_.remove_partials();
    for (const CheckpointStore::Entry& entry : store_.entries()) {
      try {
        best_accuracy_ = std::max(best_accuracy_, whole_manifest(entry.folder).test_accuracy.value_or(-1));
      } catch (const Error&) {
        continue;  // reported when a training resumes from it
      }
      if (!last_.empty()) continue;
      last_ = entry.folder;
      saved_steps_ = entry.steps;
    }
  });
  best_accuracy_ = gather_values(parts_.host, best_accuracy_).front();
  saved_steps_ = gather_values(parts_.host, saved_steps_).front();
}

CheckpointKeeper::~CheckpointKeeper() {
  if (thread_.valid()) thread_.wait();
}

// On a rank without work the phase is done at once.
void CheckpointKeeper::start_phase(std::function<std::string()> work) {
  ++phases_;
  if (work) thread_ = std::async(std::launch::async, std::move(work));
}

// A wish is repeated until it is agreed on. Save requests are numbered, since an agreed one is then already
// in the next exchange.
StepAgreement::Wishes CheckpointKeeper::wishes() {
  const bool late =
      settings_.minutes > 0 && seconds_between(last_ns_, parts_.clock()) >= 60 * settings_.minutes;
  if (parts_.signals.take_request() || (late && parts_.host.rank() == 0)) wants_to_save_ = true;
  StepAgreement::Wishes wishes = {};
  wishes[kStop] = parts_.signals.stop();
  wishes[kSave] = wants_to_save_ ? agreed_saves_ + 1 : 0;
  const bool done =
      !thread_.valid() || thread_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  wishes[kPhasesLeft] = kMostPhases - (done ? phases_ : phases_ - 1);
  return wishes;
}

void CheckpointKeeper::apply(const StepAgreement::Wishes& agreed) {
  stopped_by_ = agreed[kStop];
  if (writing_ && agreed[kPhasesLeft] == kMostPhases - phases_) continue_writing();
  if (agreed[kSave] == agreed_saves_ + 1) {
    ++agreed_saves_;
    wants_to_save_ = false;
    last_ns_ = parts_.clock();
    postponed_ = true;
  }
}

bool CheckpointKeeper::wants_to_meet() {
  hold_in("step");
  return parts_.signals.stop() != 0;
}

bool CheckpointKeeper::due_by_number() const {
  return settings_.every > 0 && parts_.trainer.steps() % settings_.every == 0;
}

bool CheckpointKeeper::goes_on() {
  accuracy_.reset();
  const Trainer& trainer = parts_.trainer;
  if (trainer.in_lockstep()) hold_in("step");
  // Ranks that train apart must not wait for each other here, unless they have just met, or a checkpoint can
  // be completed only if they agree.
  const bool apart = trainer.trains_apart();
  if (apart && trainer.ranks_met()) {
    apply(agreement_.at_once(wishes()));
  } else if (!apart || writing_) {
    if (const auto agreed = agreement_.after_step(wishes())) apply(*agreed);
  }
  if (stopped_by_ != 0) {
    save_now(std::nullopt);
    return false;
  }
  const bool by_number = due_by_number();
  if (parts_.trainer.epoch_ends_next()) {
    postponed_ = postponed_ || by_number;
  } else if (by_number) {
    wait_for_previous(kSetLargerEvery);
    begin(std::nullopt);
  } else if (postponed_ && !writing_) {
    begin(std::nullopt);
  }
  return true;
}

bool CheckpointKeeper::evaluating(std::int64_t batch, std::int64_t) {
  if (batch == 0) return true;
  hold_in("evaluation");
  if (const auto agreed = agreement_.after_evaluated_batch(wishes())) apply(*agreed);
  evaluation_abandoned_ = stopped_by_ != 0;
  return !evaluation_abandoned_;
}

void CheckpointKeeper::epoch_over(const EpochRecord& record) {
  accuracy_ = record.evaluation ? std::optional(record.evaluation->accuracy) : std::nullopt;
  const bool best = settings_.regular() && accuracy_ && *accuracy_ > best_accuracy_;
  if (!best && !postponed_) return;
  std::vector<std::string_view> remedies;
  if (due_by_number()) remedies.push_back(kSetLargerEvery);
  if (best)
    remedies.push_back("evaluate less often (run.evaluate_every), because a new best accuracy is saved, too");
  if (remedies.empty() && settings_.minutes > 0)
    remedies.push_back("set a larger run.checkpoint_minutes, or send fewer requests (SIGUSR2)");
  if (remedies.empty()) remedies.push_back("send fewer requests (SIGUSR2)");
  wait_for_previous(fmt::format("{}", fmt::join(remedies, ", and ")));
  begin(accuracy_);
}

// Reports once why training is slow if checkpoints are due faster than they can be written.
void CheckpointKeeper::wait_for_previous(std::string_view remedy) {
  if (!writing_) return;
  const std::int64_t from = writing_->steps, begin_ns = now_ns();
  wait();
  if (std::exchange(reported_wait_, true)) return;
  log::info(
      "the checkpoint of step {} was still being written when the next one was due: training waited {:.2f} s "
      "for it; later waits are not reported; to avoid them, {}",
      from, seconds_since(begin_ns), remedy);
}

void CheckpointKeeper::finish() {
  ends_ = true;
  if (evaluation_abandoned_) save_now(std::nullopt);
  if (stopped_by_ != 0) return;
  wait();
  const bool has_this = saved_steps_ == parts_.trainer.steps() && (saved_evaluated_ || !accuracy_);
  if (settings_.regular() && (!has_this || !problem_.empty())) save_now(accuracy_);
}

// Only adds to the message of the error that ends the training, also if saving fails.
std::string CheckpointKeeper::save_last_good() {
  try {
    save_now(std::nullopt);
  } catch (const Error& error) {
    if (!error.agreed()) throw;
    return fmt::format("; {}", error.what());
  }
  if (!problem_.empty()) return "";
  return fmt::format(
      "; the checkpoint of step {} holds the complete training state: resume with --resume auto, and name "
      "each key that you change with --resume-with",
      parts_.trainer.steps());
}

std::string CheckpointKeeper::save_for_results() {
  try {
    save_now(std::nullopt);
  } catch (const Error& error) {
    if (!error.agreed()) throw;
    return fmt::format("; the trained state cannot be saved either: {}", error.what());
  }
  if (!problem_.empty()) return {};
  return fmt::format(
      "; the trained state is in {}: repeat the command with --resume auto to write the missing results",
      last_.string());
}

void CheckpointKeeper::save_now(std::optional<double> test_accuracy) {
  ends_ = true;
  wait();
  if (saved_steps_ == parts_.trainer.steps() && problem_.empty() && !test_accuracy) return;
  begin(test_accuracy);
  wait();
}

void CheckpointKeeper::begin(std::optional<double> test_accuracy) {
  const Waiting waiting(parts_);
  last_ns_ = parts_.clock();
  begun_ns_ = now_ns();
  postponed_ = false;
  const std::int64_t steps = saved_steps_ = parts_.trainer.steps();
  saved_evaluated_ = test_accuracy.has_value();
  const double best_before = best_accuracy_;
  if (test_accuracy) best_accuracy_ = std::max(best_accuracy_, *test_accuracy);
  manifest_.steps = steps;
  manifest_.epochs = parts_.trainer.epochs();
  manifest_.partial_line = parts_.trainer.reported_early();
  manifest_.test_accuracy = test_accuracy;
  parts_.trainer.prepare_to_save();
  snapshot_.take([&](StateVisitor& visitor) {
    parts_.trainer.visit_state(visitor);
    parts_.also(visitor);
  });
  snapshot_seconds_ = seconds_since(begun_ns_);
  writing_ = Writing{.steps = steps, .best_before = best_before};
  start_phase([this, steps] { return write_shards(steps); });
}

std::string CheckpointKeeper::write_shards(std::int64_t steps) {
  return result_text([&] {
    hold_in("checkpoint");
    const int rank = parts_.host.rank();
    std::vector<ShardFile> files;
    if (parts_.compares) hashes_ = snapshot_.shared_hashes();
    snapshot_.arrange();
    store_.make_partial(steps);
    if (rank == 0) files.push_back(write_shard(store_.partial(steps), shared_shard(), snapshot_.shared()));
    files.push_back(write_shard(store_.partial(steps), rank_shard(rank), snapshot_.own()));
    return files;
  });
}

void CheckpointKeeper::continue_writing() {
  if (writing_->shards_done) {
    // Rank 0's result; the other ranks' threads had no work.
    const std::string mine = thread_.valid() ? thread_.get() : std::string();
    return finish_writing(broadcast_text(parts_.host, mine, 0));
  }
  Manifest manifest = manifest_;
  manifest.files.clear();
  std::string problem;
  int rank = 0;
  for (const std::string& text : gather_texts(parts_.host, thread_.get())) {
    const PhaseJson result = PhaseJson::parse(text);
    const auto its_problem = result["problem"].get<std::string>();
    if (problem.empty() && !its_problem.empty())
      problem = parts_.host.size() == 1 ? its_problem : fmt::format("rank {}: {}", rank, its_problem);
    for (const PhaseJson& file : result["files"])
      manifest.files.push_back({file["name"], file["bytes"], file["xxh3"]});
    ++rank;
  }
  if (!problem.empty()) return finish_writing(problem);
  if (parts_.compares) require_same_copies();
  writing_->shards_done = true;
  if (parts_.host.rank() != 0) return start_phase(nullptr);
  start_phase([this, manifest = std::move(manifest)]() -> std::string {
    try {
      commit(manifest);
      return {};
    } catch (const std::exception& error) {
      return as_error(error).what();
    }
  });
}

void CheckpointKeeper::require_same_copies() {
  try {
    require_same_tensors(parts_.host, hashes_, fmt::format("in the checkpoint of step {}", writing_->steps));
  } catch (const Error& error) {
    if (error.agreed()) remove_partial(writing_->steps);
    writing_.reset();
    throw;
  }
}

// Rank 0 goes first, so ranks that share its folder find nothing. Afterwards no rank removes files: the next
// checkpoint may be of the same step and so in the same folder.
void CheckpointKeeper::remove_partial(std::int64_t steps) {
  const bool first = parts_.host.rank() == 0;
  if (first) store_.remove_partial(steps);
  parts_.host.complete({.kind = CollectiveKind::barrier});
  if (!first) store_.remove_partial(steps);
  parts_.host.complete({.kind = CollectiveKind::barrier});
}

void CheckpointKeeper::commit(const Manifest& manifest) {
  sync_lines(parts_.lines);
  last_ = store_.commit(manifest);
  log::info("checkpoint {}: {:.1f} MB on rank 0, written in {:.2f} s, training paused for {:.1f} ms",
            last_.string(), 1e-6 * static_cast<double>(snapshot_.bytes()), seconds_since(begun_ns_),
            1e3 * snapshot_seconds_);
  store_.remove_partials();  // left by failed checkpoints
  store_.prune(settings_.keep);
}

void CheckpointKeeper::finish_writing(const std::string& problem) {
  const Writing written = *writing_;
  writing_.reset();
  problem_ = problem;
  if (problem.empty()) return;
  best_accuracy_ = written.best_before;
  remove_partial(written.steps);
  const std::string message =
      fmt::format("the checkpoint of step {} cannot be written: {}", written.steps, problem);
  if (settings_.errors == CheckpointErrors::stop) throw_agreed(IoError(message));
  // finish() tries once more to save the same step.
  if (std::exchange(warned_steps_, written.steps) == written.steps) return;
  const bool continues = !ends_ && stopped_by_ == 0 && !parts_.trainer.done();
  log::shared_warning("{}{}{}", message, continues ? "; training continues" : "",
                      last_.empty() ? "" : "; earlier checkpoints are kept");
}

void CheckpointKeeper::wait() {
  if (!writing_) return;
  const Waiting waiting(parts_);
  while (writing_) {
    if (thread_.valid()) thread_.wait();
    // All ranks reach this point: continue_writing() waits for all of them.
    continue_writing();
  }
}

}  // namespace lockstep
