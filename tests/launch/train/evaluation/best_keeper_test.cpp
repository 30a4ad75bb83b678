// SPDX-License-Identifier: Apache-2.0
#include "launch/train/evaluation/best_keeper.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "core/error.h"
#include "launch/train/checkpoint/keeper.h"
#include "tests/launch/train/thread_training.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

TEST(BestKeeper, ReportsThatEveryEvaluationWasNan) {
  ThreadTraining training;
  training.samples = 64;
  training.after_step = [](int, int, Trainer& trainer, Network&, Optimizer&) {
    const std::unique_ptr<Communicator> host = make_self_communicator();
    BestEvaluation best({.keep = true});
    int written = 0;
    BestKeeper keeper({best, trainer, *host, [](const std::string&) {}, "/nowhere/best.safetensors"},
                      [&](std::int64_t) { ++written; });
    EXPECT_EQ(keeper.problem(), "") << "without an evaluation";
    EpochRecord record;
    record.epoch = 1;
    record.evaluation = Evaluation{.loss = std::nan("")};
    keeper.epoch_over(record);
    EXPECT_NE(keeper.problem().find("best.safetensors"), std::string::npos) << keeper.problem();
    record.epoch = 2;
    record.evaluation = Evaluation{.loss = 1};
    keeper.epoch_over(record);
    EXPECT_EQ(keeper.problem(), "");
    EXPECT_EQ(written, 1);
  };
  train_on_threads(training);
}

TEST(BestKeeper, WarnsOfEachNewReasonWhyTheFileLacksTheBest) {
  ThreadTraining training;
  training.samples = 64;
  training.after_step = [](int, int, Trainer& trainer, Network&, Optimizer&) {
    const std::unique_ptr<Communicator> host = make_self_communicator();
    BestEvaluation best({.keep = true});
    best.add({.loss = 1, .accuracy = 0.1}, 1);  // before training resumed
    BestKeeper keeper({best, trainer, *host, [](const std::string&) {}, "/nowhere/best.safetensors"},
                      [](std::int64_t) { throw IoError("no space is left"); });
    EXPECT_NE(keeper.problem().find("epoch 1"), std::string::npos) << keeper.problem();
    const auto warning_after = [&](std::int64_t epoch) {
      EpochRecord record;
      record.epoch = epoch;
      record.evaluation = Evaluation{.loss = 1, .accuracy = 0.1 * static_cast<double>(epoch)};
      testing::internal::CaptureStderr();
      keeper.epoch_over(record);
      return testing::internal::GetCapturedStderr();
    };
    expect_parts(warning_after(2), {"no space is left"});
    EXPECT_EQ(warning_after(3), "") << "the same reason again";
  };
  train_on_threads(training);
}

// The best of the complete checkpoints, not of those that could not be written or are damaged.
TEST(CheckpointKeeper, SavesABetterEvaluationThanTheBestSavedOne) {
  StopSignals& signals = StopSignals::of_process();
  ThreadTraining training;
  training.samples = 64;
  training.after_step = [&signals](int, int, Trainer& trainer, Network&, Optimizer&) {
    const std::unique_ptr<Communicator> host = make_self_communicator();
    const TemporaryFolder run("best_checkpoint");
    const CheckpointKeeper::Parts parts{
        .trainer = trainer, .host = *host, .signals = signals, .device = trainer.device()};
    const CheckpointSettings settings{.every = 1000, .minutes = 0};
    const Manifest manifest{.test_accuracy = {}, .files = {}};
    // The accuracy that the newest checkpoint has after this evaluation.
    const auto saved_after = [](CheckpointKeeper& keeper, double accuracy) {
      EpochRecord record;
      record.epoch = 1;
      record.evaluation = Evaluation{.loss = 1, .accuracy = accuracy};
      keeper.epoch_over(record);
      keeper.save_for_results();  // waits until the checkpoint is complete
      return keeper.last().empty() ? -1 : read_manifest(keeper.last()).test_accuracy.value_or(-1);
    };
    CheckpointKeeper first(parts, settings, run.path(), manifest);
    run.write("checkpoints", {});  // a file, so the folder cannot be created
    EXPECT_EQ(saved_after(first, 0.9), -1);
    run.remove("checkpoints");
    EXPECT_EQ(saved_after(first, 0.8), 0.8);
    std::filesystem::remove(first.last() / shared_shard());
    CheckpointKeeper second(parts, settings, run.path(), manifest);
    EXPECT_EQ(saved_after(second, 0.7), 0.7);
  };
  train_on_threads(training);
}

TEST(CheckpointKeeper, SavesEvery15MinutesByDefault) {
  StopSignals& signals = StopSignals::of_process();
  ThreadTraining training;
  training.samples = 64;
  training.after_step = [&signals](int, int, Trainer& trainer, Network&, Optimizer&) {
    const std::unique_ptr<Communicator> host = make_self_communicator();
    const TemporaryFolder run("timed_checkpoint");
    std::int64_t now_seconds = 0;
    int begun = 0;
    CheckpointKeeper keeper({.trainer = trainer,
                             .host = *host,
                             .signals = signals,
                             .device = trainer.device(),
                             .also = [&](StateVisitor&) { ++begun; },
                             .clock = [&] { return now_seconds * 1'000'000'000; }},
                            {}, run.path(), Manifest{.test_accuracy = {}, .files = {}});
    // The number of checkpoints begun until this time.
    const auto begun_at = [&](std::int64_t minutes, std::int64_t seconds) {
      now_seconds = 60 * minutes + seconds;
      EXPECT_TRUE(keeper.goes_on());
      return begun;
    };
    EXPECT_EQ(begun_at(14, 59), 0);
    EXPECT_EQ(begun_at(15, 0), 1);
    EXPECT_EQ(begun_at(30, 0), 1) << "postponed: the first one is still being written";
    keeper.save_for_results();  // waits until the checkpoint is complete
    EXPECT_EQ(begun_at(30, 1), 2);
    keeper.save_for_results();
    EXPECT_EQ(begun_at(45, 0), 2);
    EXPECT_EQ(begun_at(45, 1), 3);
    EXPECT_EQ(keeper.problem(), "");
  };
  train_on_threads(training);
}

// The second checkpoint is due while the first one is being written.
TEST(CheckpointKeeper, NamesTheKeyThatMakesWaitsRarer) {
  StopSignals& signals = StopSignals::of_process();
  ThreadTraining training;
  training.samples = 64;
  training.after_step = [&signals](int, int, Trainer& trainer, Network&, Optimizer&) {
    const std::unique_ptr<Communicator> host = make_self_communicator();
    const auto log_of = [&](const CheckpointSettings& settings, double second_accuracy,
                            std::int64_t minutes_between) {
      const TemporaryFolder run("awaited");
      std::int64_t now = 0;
      CheckpointKeeper keeper({.trainer = trainer,
                               .host = *host,
                               .signals = signals,
                               .device = trainer.device(),
                               .clock = [&] { return now; }},
                              settings, run.path(), Manifest{.test_accuracy = {}, .files = {}});
      EpochRecord record;
      record.epoch = 1;
      record.evaluation = Evaluation{.loss = 1, .accuracy = 0.5};
      keeper.epoch_over(record);
      now = minutes_between * 60'000'000'000;
      testing::internal::CaptureStderr();
      EXPECT_TRUE(keeper.goes_on());
      record.evaluation->accuracy = second_accuracy;
      keeper.epoch_over(record);
      return testing::internal::GetCapturedStderr();
    };
    const auto names = [](const std::string& log, const std::string& key) {
      return log.find("run." + key) != std::string::npos;
    };
    const std::string best = log_of({}, 0.6, 0);
    EXPECT_TRUE(names(best, "evaluate_every")) << best;
    EXPECT_FALSE(names(best, "checkpoint_every")) << "it is 0: " << best;
    const std::string timed = log_of({}, 0.4, 15);
    EXPECT_TRUE(names(timed, "checkpoint_minutes")) << timed;
    EXPECT_FALSE(names(timed, "checkpoint_every") || names(timed, "evaluate_every")) << timed;
    const std::string numbered = log_of({.every = 1}, 0.6, 0);
    EXPECT_TRUE(names(numbered, "checkpoint_every")) << numbered;
    EXPECT_FALSE(names(numbered, "evaluate_every")) << "the first wait is within the epoch: " << numbered;
  };
  train_on_threads(training);
}

}  // namespace
}  // namespace lockstep
