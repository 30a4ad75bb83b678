// SPDX-License-Identifier: Apache-2.0
//
// Tests every fractional key at the ends of its range and next to them, after conversion to fp32: the value
// is refused, or a training step leaves parameters, running statistics and the optimizer's state finite. Two
// ranks try the keys of communication; they count as nodes, so that codecs are active. One rank, which waits
// for no other, tries the other keys. Two ranks also test that keys of the optimizer, the schedule, the
// network and the data have an effect. One rank also tests the compute threads of a resumed training, and the
// trainings with which `lockstep find-batch` compares batches.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/find_batch/batch_accuracy.h"
#include "launch/program/resume/training_keeper.h"
#include "launch/program/setup/engine_options.h"
#include "launch/program/setup/training_setup.h"
#include "launch/train/digest.h"
#include "launch/train/job_end.h"
#include "launch/train/trainer.h"
#include "tests/temporary_folder.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

using Settings = std::vector<std::string>;

const Settings kSmallTraining = {"data.format=synthetic",
                                 "data.path=none",
                                 "data.synthetic.height=8",
                                 "data.synthetic.width=8",
                                 "data.synthetic.channels=1",
                                 "data.synthetic.classes=3",
                                 "data.synthetic.train_samples=64",
                                 "data.synthetic.test_samples=8",
                                 "data.horizontal_flip=true",
                                 "model.name=cnn",
                                 "model.cnn.width=4",
                                 "model.cnn.hidden=8",
                                 "model.dropout=0.5",
                                 "train.batch=8",
                                 "train.threads=1",
                                 "train.ema_decay=0.5",
                                 "optimizer.clip_norm=1",
                                 "optimizer.learning_rate=0.01",
                                 "schedule.warmup_epochs=0",
                                 "comm.compress_within_node=true",
                                 "kernels.choose=direct",
                                 "kernels.cache=none",
                                 "run.measure_peak=false",
                                 "world.device=cpu"};

// Settings under which the key has an effect.
std::vector<Settings> circumstances(const std::string& key) {
  if (key.starts_with("comm.") && std::ranges::count(key, '.') == 2) {
    const std::string codec = key.substr(5, key.rfind('.') - 5);
    return {{"comm.codec=" + codec, "optimizer.clip_norm=0", "model.cnn.hidden=128"}};
  }
  if (key == "data.mixup") return {{"data.cutmix=1"}};
  if (key == "data.cutmix") return {{"data.mixup=0.2"}};
  if (key.starts_with("optimizer.beta")) return {{"optimizer.name=adamw"}};
  if (key == "optimizer.trust_coefficient") return {{"optimizer.name=lars"}};
  if (key.starts_with("optimizer."))
    return {{"optimizer.name=sgd"}, {"optimizer.name=adamw"}, {"optimizer.name=lars"}};
  if (key.starts_with("train.loss_scale")) return {{"train.precision=fp16"}};
  if (key.starts_with("schedule."))
    return {{"schedule.name=step", "schedule.milestones=[1]"},
            {"schedule.name=cosine", "schedule.warmup_epochs=1"}};
  return {{}};
}

// Values in and next to the range, and values that become zero, subnormal or infinite in fp32.
std::set<double> ends_of(const detail::Range& range) {
  std::set<double> ends = {5e-324, 1e-45, 3.5e38};
  if (in_large_form()) ends.insert({0, 1e-46, 1e-40, 1.2e-38, 1, 1e300});
  for (const double end : {range.least, range.most}) {
    if (!std::isfinite(end)) continue;
    for (const double sign : {-1.0, 1.0}) {
      ends.insert(end + sign * std::max(std::abs(end), 1e-30) * 0x1p-26);  // equal to the end in fp32
      if (in_large_form()) ends.insert(end + sign * std::max(std::abs(end), 1e-30) * 0x1p-52);
    }
    ends.insert(end);
  }
  return ends;
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

struct Outcomes {
  int refused = 0, trained = 0;
};

void try_setting(World& world, Communicator& host, const Settings& settings, Outcomes& outcomes) {
  Config config;
  const std::string& tried = settings.back();
  try {
    config = config_of(settings);
    TrainingSetup training(config, world, host, {});
    Trainer trainer(training.parts(), training.schedule(), trainer_options(config));
    trainer.step();
    trainer.finish_steps();
    CHECK(all_finite(training.network().values()) && all_finite(training.network().statistics()),
          "{}: parameters or statistics are not finite", tried);
    CHECK(all_finite(training.optimizer().state()), "{}: the optimizer's state is not finite", tried);
    ++outcomes.trained;
  } catch (const Error& error) {
    const bool too_little = tried.starts_with("world.memory_limit") && error.exit_code() == exit_code::io;
    if (error.exit_code() != exit_code::config && !too_little) throw;
    ++outcomes.refused;
  }
}

int try_all(World& world) {
  const std::unique_ptr<Communicator> host = world.communicator();
  int keys = 0;
  std::vector<std::string> failed;
  for (const detail::Key& key : detail::keys()) {
    Config defaults;
    const detail::Member member = key.member(defaults);
    const bool one = std::holds_alternative<double*>(member);
    const bool three = std::holds_alternative<std::array<double, 3>*>(member);
    if (!one && !three && !std::holds_alternative<std::vector<double>*>(member)) continue;
    const bool is_size = key.whole && key.name.starts_with("model.");
    if (is_size || key.name.starts_with("run.")) continue;  // no effect on the computation
    if (key.name.starts_with("comm.") != (world.size() > 1)) continue;
    ++keys;
    Outcomes outcomes;
    for (const Settings& more : circumstances(key.name)) {
      for (const double end : ends_of(key.range)) {
        Settings settings = kSmallTraining;
        settings.insert(settings.end(), more.begin(), more.end());
        settings.push_back(one     ? fmt::format("{}={:.17g}", key.name, end)
                           : three ? fmt::format("{0}=[{1:.17g}, {1:.17g}, {1:.17g}]", key.name, end)
                                   : fmt::format("{}=[{:.17g}]", key.name, end));
        try {
          try_setting(world, *host, settings, outcomes);
        } catch (const std::exception& error) {
          failed.push_back(
              fmt::format("{} with {}: {}", settings.back(), fmt::join(more, " "), error.what()));
        }
      }
    }
    if (outcomes.trained == 0) failed.push_back(key.name + " is refused everywhere");
  }
  CHECK(keys > 12, "{} keys", keys);
  if (failed.empty()) return 0;
  fmt::print(stderr, "{}\n", fmt::join(failed, "\n"));
  return 1;
}

// Averages the parameters of its ranks, of which a codec can compress some.
const Settings kAveraging = {"train.average_every=4", "optimizer.clip_norm=0", "train.ema_decay=0",
                             "model.cnn.hidden=128"};

Settings averaging_with(const std::string& setting) {
  Settings settings = kAveraging;
  settings.push_back(setting);
  return settings;
}

// Each of these settings changes the state after more than an epoch.
const Settings kEffects[] = {{},
                             {"train.seed=2"},
                             kAveraging,
                             averaging_with("comm.codec=int8"),
                             {"optimizer.name=adamw"},
                             {"optimizer.name=adamw", "optimizer.beta1=0.5"},
                             {"optimizer.name=adamw", "optimizer.beta2=0.5"},
                             {"optimizer.name=lars"},
                             {"optimizer.nesterov=true"},
                             {"optimizer.weight_decay=0.1"},
                             {"optimizer.weight_decay=0.1", "optimizer.decay_norm_and_bias=false"},
                             {"schedule.name=cosine"},
                             {"schedule.name=step", "schedule.milestones=[1]"},
                             {"schedule.warmup_epochs=1"},
                             {"train.precision=bf16"},
                             {"train.label_smoothing=0.1"},
                             {"train.accumulation=2"},
                             {"model.dropout=0.25"},
                             {"model.sync_batch_norm=true"},
                             {"data.crop_padding=2"},
                             {"data.horizontal_flip=false"},
                             {"data.mixup=0.2"},
                             {"data.cutmix=1"},
                             {"data.mean=[0.25]"}};

void require_effects(World& world) {
  const std::unique_ptr<Communicator> host = world.communicator();
  std::map<std::string, std::string> settings_by_digest;
  for (const Settings& effect : kEffects) {
    Settings settings = kSmallTraining;
    settings.emplace_back("train.epochs=5");
    settings.insert(settings.end(), effect.begin(), effect.end());
    const Config config = config_of(settings);
    TrainingSetup training(config, world, *host, {});
    Trainer trainer(training.parts(), training.schedule(), trainer_options(config));
    for (int step = 0; step < 6; ++step) trainer.step();  // an epoch has 4, or 2
    trainer.finish_steps();
    const auto [found, is_new] = settings_by_digest.emplace(digest(training.network(), training.optimizer()),
                                                            fmt::format("{}", fmt::join(effect, " ")));
    CHECK(is_new, "{} trains just like {}", effect, found->second);
  }
}

// The saved training used one of its two planned compute threads.
void require_saved_threads(World& world) {
  const std::unique_ptr<Communicator> host = world.communicator();
  const TemporaryFolder folder("saved_threads");
  Settings settings = kSmallTraining;
  settings.insert(settings.end(), {"train.threads=2", "run.dir=" + folder.path().string()});
  const Config config = config_of(settings);
  const std::string toml = to_toml(config);
  {
    TrainingSetup training(config, world, *host, {});
    training.set_threads(1);
    Trainer trainer(training.parts(), training.schedule(), trainer_options(config));
    trainer.step();
    TrainingKeeper checkpoints(config, toml, *host, training, trainer,
                               {.also = [](StateVisitor&) {}, .waiting = [](bool) {}, .lines = {}});
    checkpoints.keeper().save_for_results();
    CHECK(checkpoints.keeper().problem().empty(), "{}", checkpoints.keeper().problem());
  }
  TrainingSetup training(config, world, *host, {});
  CHECK(training.threads() == 2, "{} threads", training.threads());
  Trainer trainer(training.parts(), training.schedule(), trainer_options(config));
  go_on_from(newest_saved(*host, folder.path()), {}, toml, *host, training, trainer);
  CHECK(training.threads() == 1, "{} threads", training.threads());
}

// The first batch exceeds the 64 samples of the training set, so the second one gives the number of steps.
void require_equal_lengths(World& world) {
  const Config config = config_of(kSmallTraining);
  const AsConfigured configured{.batch = 8, .learning_rate = config.schedule.learning_rate};
  int trainings = 0;
  const std::vector<BatchAccuracy> found = compare_accuracy(world, config, {}, {128, 8, 16, 64}, configured,
                                                            2, [&](const std::string&) { ++trainings; });
  std::string lengths;
  for (const BatchAccuracy& each : found) {
    CHECK(each.problem.empty() == (each.batch != 128), "batch {}: {}", each.batch, each.problem);
    lengths += fmt::format("{}: {} and {} steps at {}\n", each.batch, each.steps_of_epochs, each.steps,
                           each.learning_rate);
  }
  CHECK(lengths ==
            "8: 16 and 16 steps at 0.01\n16: 8 and 16 steps at 0.02\n64: 2 and 16 steps at 0.08\n"
            "128: 0 and 0 steps at 0.16\n",
        "{}", lengths);
  CHECK(trainings == 6, "{} trainings: batches 16 and 64 need two each", trainings);
}

int run(World& world) {
  return run_or_abort(world, [&] {
    if (world.size() > 1) {
      require_effects(world);
    } else {
      require_saved_threads(world);
      require_equal_lengths(world);
    }
    return try_all(world);
  });
}

}  // namespace
}  // namespace lockstep

int main() { return lockstep::run_job(lockstep::run); }
