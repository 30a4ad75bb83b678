// SPDX-License-Identifier: Apache-2.0
#include "launch/program/resume/resume.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/suggestions.h"
#include "launch/train/checkpoint/store.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Keys that change only the speed, the paths, the output or the end of a training. train.accumulation and the
// number of ranks are checked together with train.batch: see require_same_batch(). Separated by blanks.
constexpr std::string_view kFree =
    "comm.between_nodes comm.bucket_mib comm.cga_cluster_size comm.check comm.cross_barrier comm.cta_policy "
    "comm.ctas_beside_compute comm.exchange comm.gradient_memory comm.kernel_times comm.max_ctas "
    "comm.min_ctas comm.nvls_ctas comm.overlap comm.priority comm.timeout_seconds comm.traffic_class "
    "data.augment_on data.loader data.loader_threads data.path data.preload data.verify model.reset_head "
    "train.accumulation train.cuda_graph train.enqueue_every train.max_skipped_steps train.recompute "
    "train.threads train.until_epoch";
constexpr std::string_view kFreeSections[] = {"run.", "world.", "kernels.", "profile."};

bool matters(const std::string& key) {
  const auto begins = [&](std::string_view section) { return key.starts_with(section); };
  return std::ranges::count(split_text(kFree, ' '), key) == 0 && std::ranges::none_of(kFreeSections, begins);
}

CheckpointCandidates candidates_for(const Config& config, const ResumeFlags& flags) {
  if (flags.from == ResumeFlags::kNever) return {};
  if (flags.from == ResumeFlags::kAuto) return checkpoints_in(config.run_dir);
  const fs::path folder = fs::path(flags.from).lexically_normal();
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw IoError(fmt::format(
        "--resume {}: no such folder; allowed are auto, never, and the folder of a checkpoint or a run",
        flags.from));
  }
  return checkpoints_of(folder, "--resume " + flags.from);
}

// Refuses flags of a resume with --resume never, which starts a new training and moves the checkpoints aside.
void require_resume(const ResumeFlags& flags) {
  std::string unused;
  if (!flags.with.empty())
    unused = "--resume-with " + flags.with.front();
  else if (flags.size == ResumeFlags::kAnySize)
    unused = "--resume-size any";
  if (flags.from != ResumeFlags::kNever || unused.empty()) return;
  throw UsageError(fmt::format(
      "{} has no effect with --resume never; remove it, or resume a training with --resume auto", unused));
}

void require_keys(const ResumeFlags& flags, const Registry& registry) {
  const std::vector<detail::Key> keys = detail::keys_of(registry);
  for (const std::string& name : flags.with) {
    if (std::ranges::find(keys, name, &detail::Key::name) != keys.end()) continue;
    throw UsageError(
        fmt::format("--resume-with {}: unknown key{}", name, did_you_mean(suggested_key(name, keys))));
  }
}

// True if the resumed training needs state that cannot be made from the saved one: other layers are frozen,
// samples have another order, or ranks begin or stop training apart.
bool breaks_state(const KeyDifference& change) {
  if (change.key == "model.freeze" || change.key == "train.seed") return true;
  if (change.value.empty()) return false;  // saved before the key existed
  const auto averages = [](const std::string& every) { return every != "0" && every != "1"; };
  return change.key == "comm.topology" ||
         (change.key == "train.average_every" && averages(change.value) != averages(change.other));
}

void require_same_config(const Manifest& manifest, const std::string& toml, const ResumeFlags& flags,
                         const fs::path& folder) {
  std::vector<std::string> told, keys;
  for (const KeyDifference& each : differences(manifest.config, toml)) {
    if (!matters(each.key)) continue;
    const std::string difference =
        fmt::format("{}: {} was saved, {} is given", each.key, each.value.empty() ? "nothing" : each.value,
                    each.other.empty() ? "nothing" : each.other);
    if (each.other.empty())
      throw ConfigError(fmt::format(
          "{}: {}: this program has no such key; use the one that saved the checkpoint (version {}), "
          "or an export (--init)",
          folder.string(), difference, manifest.lockstep));
    if (!flags.evaluates && breaks_state(each))
      throw ConfigError(
          fmt::format("{}: {}: this cannot change on resuming; set the saved value, or start a new training "
                      "from an export (--init)",
                      folder.string(), difference));
    if (std::ranges::count(flags.with, each.key) > 0) continue;
    told.push_back(difference);
    keys.push_back("--resume-with " + each.key);
  }
  if (told.empty()) return;
  throw ConfigError(
      fmt::format("{} belongs to another training: {}. Set the saved values, accept the differences with {}, "
                  "or set another run.dir for a new training",
                  folder.string(), fmt::join(told, "; "), fmt::join(keys, " ")));
}

// Throws ConfigError if a step would have another number of samples.
void require_same_batch(const Manifest& manifest, const Config& config, int ranks, const ResumeFlags& flags) {
  const std::int64_t of_one = config.loader.batch * ranks;
  if (of_one * config.loader.accumulation == manifest.global_batch) return;
  if (std::ranges::count(flags.with, "train.accumulation") > 0) return;
  if (flags.size == ResumeFlags::kAnySize && manifest.global_batch % of_one == 0) return;
  const std::string what = fmt::format(
      "{} x train.batch = {} x train.accumulation = {} are {} samples per step, the saved training has {}",
      counted(ranks, "rank"), config.loader.batch, config.loader.accumulation,
      of_one * config.loader.accumulation, manifest.global_batch);
  if (manifest.global_batch % of_one == 0) {
    const std::int64_t keeps = manifest.global_batch / of_one;
    if (config.rate_is_given)
      throw ConfigError(
          fmt::format("{}: set train.accumulation = {}, or give --resume-size any", what, keeps));
    // A chosen learning rate follows the key, but not the flag.
    throw ConfigError(
        fmt::format("{}: give --resume-size any, which sets train.accumulation = {}", what, keeps));
  }
  const bool batch_divides = manifest.global_batch % config.loader.batch == 0;
  const std::int64_t known = batch_divides                        ? config.loader.batch
                             : manifest.global_batch % ranks == 0 ? ranks
                                                                  : 1;
  throw ConfigError(fmt::format("{}, and no train.accumulation gives this number: use {} that divides {}",
                                what, batch_divides ? "a number of ranks" : "a train.batch",
                                manifest.global_batch / known));
}

// The state of ranks that train apart, or of gradients under way, belongs to each rank.
void require_same_ranks(const Manifest& manifest, const Config& config, int ranks) {
  if (manifest.ranks == ranks) return;
  const auto refuse = [&](const std::string& setting) {
    throw ConfigError(
        fmt::format("the checkpoint is of {}, this job has {}; a training with {} resumes only on the saved "
                    "number of ranks",
                    counted(manifest.ranks, "rank"), ranks, setting));
  };
  if (config.trainer.average_every > 1)
    refuse(fmt::format("train.average_every = {}", config.trainer.average_every));
  if (config.trainer.topology == Topology::ring) refuse("comm.topology = \"ring\"");
  if (config.gradients.staleness > 0) refuse(fmt::format("train.staleness = {}", config.gradients.staleness));
}

// The value of a key in the saved configuration; empty if it lacks the key.
std::string setting_in(const Manifest& manifest, const std::string& key) {
  for (const KeyDifference& each : differences(manifest.config, ""))
    if (each.key == key) return each.value;
  return {};
}

// Local SGD: each rank has its own parameters and a last average after the first train.average_after steps.
void require_same_phase(const Manifest& manifest, const Config& config) {
  if (config.trainer.average_every <= 1) return;
  const std::int64_t now = config.trainer.average_after;
  const std::int64_t before =
      number_from<std::int64_t>(setting_in(manifest, "train.average_after")).value_or(now);
  const bool was_apart = manifest.steps > before;
  if (was_apart == (manifest.steps > now)) return;
  throw ConfigError(fmt::format(
      "train.average_after = {}: the checkpoint is of step {}, after which ranks {} different parameters "
      "(train.average_after = {}); set a value {} {}",
      now, manifest.steps, was_apart ? "had" : "did not have", before, was_apart ? "below" : "of at least",
      manifest.steps));
}

CheckpointCandidates agreed_candidates(Communicator& host, const Config& config, const ResumeFlags& flags,
                                       const Registry& registry) {
  CheckpointCandidates mine;
  run_agreed(host, [&] {
    require_resume(flags);
    require_keys(flags, registry);
    if (host.rank() == 0) mine = candidates_for(config, flags);
  });
  return candidates_of_rank_0(host, std::move(mine));
}

}  // namespace

std::string to_text(const ResumeFlags& flags) {
  return fmt::format("--resume \"{}\" --resume-with {} --resume-size {}", flags.from, flags.with, flags.size);
}

std::optional<SavedTraining> find_saved(Communicator& host, const Config& config, const ResumeFlags& flags,
                                        const Registry& registry) {
  const CheckpointCandidates candidates = agreed_candidates(host, config, flags, registry);
  if (candidates.folders.empty()) {
    if (flags.from != ResumeFlags::kNever)
      log::info("--resume {}: {} has no checkpoint, so nothing is resumed", flags.from, config.run_dir);
    return std::nullopt;
  }
  SavedTraining saved = first_intact(host, candidates);
  run_agreed(host, [&] {
    require_same_config(saved.manifest, to_toml(config, registry), flags, saved.folder);
    if (flags.evaluates) return;
    require_same_batch(saved.manifest, config, host.size(), flags);
    require_same_ranks(saved.manifest, config, host.size());
    require_same_phase(saved.manifest, config);
  });
  const auto in_run_dir = [&] {
    std::error_code error;
    const fs::path folder = fs::canonical(saved.folder, error);  // it may be a link
    return fs::equivalent(folder.parent_path(), CheckpointStore(config.run_dir).folder(), error);
  };
  saved.in_run_dir = gather_values<std::int32_t>(host, in_run_dir()).front() != 0;
  return saved;
}

std::vector<std::string> saved_settings(Communicator& host, const Config& config, const ResumeFlags& flags,
                                        const Registry& registry) {
  const CheckpointCandidates candidates = agreed_candidates(host, config, flags, registry);
  Manifest manifest;
  for (const fs::path& folder : candidates.folders) {
    if (host.rank() != 0) break;
    try {
      manifest = whole_manifest(folder);
      break;
    } catch (const Error& error) {
      log::debug("{}: {}", folder.string(), error.what());
    }
  }
  manifest.config = broadcast_text(host, manifest.config, 0);
  std::vector<std::string> found;
  const auto take = [&](const char* key) {
    if (const std::string value = setting_in(manifest, key); !value.empty())
      found.push_back(fmt::format("{}={}", key, value));
  };
  if (config.loader.batch == 0) take("train.batch");
  if (config.network.precision == Precision::automatic) take("train.precision");
  return found;
}

NetworkSettings network_settings(const Manifest& manifest, const Registry& registry) {
  const std::vector<detail::Key> keys = detail::keys_of(registry);
  NetworkSettings found;
  for (const KeyDifference& each : differences(manifest.config, "")) {
    if (!each.key.starts_with("model.") && !each.key.starts_with("data.")) continue;
    if (std::ranges::find(keys, each.key, &detail::Key::name) == keys.end())
      found.unknown.push_back(each.key);
    else
      found.settings.push_back(each.key + "=" + each.value);
  }
  return found;
}

void keep_global_batch(const SavedTraining& saved, const ResumeFlags& flags, int ranks, Config& config) {
  const Manifest& manifest = saved.manifest;
  const std::int64_t of_one = config.loader.batch * ranks;
  const std::int64_t keeps = manifest.global_batch / of_one;
  if (flags.size != ResumeFlags::kAnySize || keeps * of_one != manifest.global_batch) return;
  if (keeps == config.loader.accumulation) return;
  log::info(
      "--resume-size any: the checkpoint has {}, this job {}, so train.accumulation is {} instead of {}: a "
      "step keeps its {} samples",
      counted(manifest.ranks, "rank"), ranks, keeps, config.loader.accumulation, manifest.global_batch);
  config.loader.accumulation = keeps;
}

}  // namespace lockstep
