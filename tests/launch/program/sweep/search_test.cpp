// SPDX-License-Identifier: Apache-2.0
//
// The search of `lockstep sweep`, on simulated trainings that take no time. sweep_command_test.cpp tests the
// program.
#include "launch/program/sweep/search.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/random.h"
#include "launch/program/sweep/jobs/slots.h"
#include "launch/program/sweep/plan.h"
#include "launch/program/sweep/space.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// Simulated trainings with a known accuracy after each epoch and a known time for each epoch.
struct MadeUpTrainings {
  std::function<SweepMeasure(std::int64_t trial, std::int64_t epochs)> measure;
  std::function<double(std::int64_t trial)> epoch_seconds = [](std::int64_t) { return 1.0; };
};

struct MadeUpSweep {
  std::vector<SweepJob> jobs = {};  // in the order of their start
  std::int64_t epochs = 0;
  double busy_share = 0;
  std::vector<std::int64_t> ranking = {};
};

// Runs a whole search against a simulated clock.
MadeUpSweep played(const SweepRules& rules, const MadeUpTrainings& trainings) {
  struct UnderWay {
    SweepJob job;
    double since, until;
  };
  SweepSearch search(rules);
  std::vector<UnderWay> running;
  MadeUpSweep sweep;
  double now = 0, busy = 0;
  const auto epochs_of = [&](const SweepJob& job) {
    return rules.rungs[job.rung] - (job.rung == 0 ? 0 : rules.rungs[job.rung - 1]);
  };
  for (;;) {
    while (std::ssize(running) < rules.slots) {
      const auto job = search.next(now);
      if (!job) break;
      search.started(*job, now);
      sweep.jobs.push_back(*job);
      sweep.epochs += epochs_of(*job);
      const double seconds = trainings.epoch_seconds(job->trial) * static_cast<double>(epochs_of(*job));
      busy += seconds;
      running.push_back({*job, now, now + seconds});
    }
    if (running.empty()) break;
    const auto first = std::ranges::min_element(running, {}, &UnderWay::until);
    const UnderWay ended = *first;
    running.erase(first);
    now = ended.until;
    search.finished(ended.job, trainings.measure(ended.job.trial, rules.rungs[ended.job.rung]),
                    ended.until - ended.since);
  }
  sweep.busy_share = busy / (now * static_cast<double>(rules.slots));
  sweep.ranking = search.ranking();
  return sweep;
}

// Accuracy rises with epochs towards the trial's limit, which is highest for `optimum`. Measurements have a
// little noise.
MadeUpTrainings with_optimum(std::int64_t optimum, std::uint64_t seed) {
  const auto measure = [=](std::int64_t trial, std::int64_t epochs) {
    const Random random(seed, "made up trainings");
    const double good_for =
        trial == optimum ? 0.95 : 0.3 + 0.5 * random.uniform(static_cast<std::uint64_t>(trial));
    const double noise =
        0.04 * (random.uniform(static_cast<std::uint64_t>(1000 + 100 * trial + epochs)) - 0.5);
    return SweepMeasure{.accuracy = good_for * (1 - std::exp(-0.7 * static_cast<double>(epochs))) + noise};
  };
  const auto seconds = [=](std::int64_t trial) {
    return 0.7 + 0.6 * Random(seed, "seconds").uniform(static_cast<std::uint64_t>(trial));
  };
  return {.measure = measure, .epoch_seconds = seconds};
}

TEST(SweepSearch, HalvingFindsTheOptimumInAThirdOfTheGridsEpochs) {
  struct Size {
    std::int64_t slots, epochs;
  };
  for (const Size size : {Size{1, 27}, Size{2, 27}, Size{4, 81}}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const std::int64_t optimum = static_cast<std::int64_t>(seed) * 7 % 27;
      const SweepRules rules{
          .trials = 27, .rungs = halving_rungs(size.epochs, 1, 3), .eta = 3, .slots = size.slots};
      const MadeUpSweep sweep = played(rules, with_optimum(optimum, seed));
      ASSERT_FALSE(sweep.ranking.empty());
      EXPECT_EQ(sweep.ranking.front(), optimum) << size.slots << " slots, seed " << seed;
      EXPECT_LT(3 * sweep.epochs, 27 * size.epochs) << size.slots << " slots, seed " << seed;
      const SweepJob whole{.trial = optimum, .rung = rules.rungs.size() - 1};
      EXPECT_EQ(std::ranges::count(sweep.jobs, whole), 1) << size.slots << " slots, seed " << seed;
    }
  }
}

TEST(SweepSearch, SlotsStayBusy) {
  for (const std::int64_t slots : {1, 2, 4, 8}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const SweepRules rules{.trials = 27 * slots, .rungs = halving_rungs(9, 1, 3), .eta = 3, .slots = slots};
      EXPECT_GE(played(rules, with_optimum(5, seed)).busy_share, 0.95) << slots << " slots, seed " << seed;
    }
  }
}

TEST(SweepSearch, TrialIsPromotedAsSoonAsItIsAmongTheBest) {
  SweepSearch search({.trials = 9, .rungs = {1, 3, 9}, .eta = 3, .slots = 1});
  for (std::int64_t trial = 0; trial < 3; ++trial) {
    const auto job = search.next(0);
    ASSERT_EQ(job, (SweepJob{.trial = trial, .rung = 0}));
    search.started(*job, 0);
    search.finished(*job, {.accuracy = trial == 1 ? 0.8 : 0.2}, 1);
  }
  EXPECT_EQ(search.next(0), (SweepJob{.trial = 1, .rung = 1})) << "six trials have not started";
}

TEST(SweepSearch, TrialsRunEachRungOnceInOrder) {
  const MadeUpSweep sweep =
      played({.trials = 20, .rungs = {2, 5, 10}, .eta = 2, .slots = 3}, with_optimum(4, 1));
  std::map<std::int64_t, std::size_t> next;
  for (const SweepJob& job : sweep.jobs) EXPECT_EQ(job.rung, next[job.trial]++) << job.trial;
  EXPECT_EQ(next.size(), 20u);
}

TEST(SweepSearch, GridAndRandomTrainEveryTrialFullyAndOnce) {
  const MadeUpSweep sweep = played({.trials = 7, .rungs = {4}, .slots = 2}, with_optimum(3, 1));
  EXPECT_EQ(sweep.epochs, 28);
  EXPECT_EQ(sweep.jobs.size(), 7u);
  EXPECT_EQ(sweep.ranking.front(), 3);
}

TEST(SweepSearch, CountsTheEpochsOfEachTrialThatHasNotFailed) {
  SweepSearch search({.trials = 3, .rungs = {4}, .own_epochs = {2, 5, 4}, .slots = 1});
  EXPECT_EQ(search.expected_epochs(), 11);
  search.started({.trial = 1}, 0);
  search.failed({.trial = 1}, "no room");
  EXPECT_EQ(search.expected_epochs(), 6);
}

TEST(SweepSearch, AtLeastOneTrialIsFullyTrained) {
  for (const std::int64_t trials : {1, 2, 3, 5}) {
    const MadeUpSweep sweep =
        played({.trials = trials, .rungs = {1, 4, 16}, .eta = 4, .slots = 1}, with_optimum(0, 2));
    EXPECT_EQ(sweep.jobs.back().rung, 2u) << trials;
    EXPECT_EQ(sweep.ranking.front(), 0) << trials;
  }
}

TEST(SweepSearch, FailedTrialIsTheWorstOfItsRung) {
  SweepSearch search({.trials = 3, .rungs = {1, 3}, .eta = 3, .slots = 1});
  for (std::int64_t trial = 0; trial < 3; ++trial) {
    const SweepJob job{.trial = trial, .rung = 0};
    search.started(job, 0);
    if (trial == 1)
      search.finished(job, {.accuracy = 0.1}, 1);
    else
      search.failed(job, "the loss is not finite");
  }
  EXPECT_EQ(search.next(0), (SweepJob{.trial = 1, .rung = 1}));
  EXPECT_EQ(search.ranking(), std::vector<std::int64_t>{1});
}

TEST(SweepSearch, EndsIfAllTrialsFail) {
  SweepSearch search({.trials = 2, .rungs = {1, 3}, .eta = 3, .slots = 2});
  for (std::int64_t trial = 0; trial < 2; ++trial) {
    search.started({.trial = trial, .rung = 0}, 0);
    search.failed({.trial = trial, .rung = 0}, "no room");
  }
  EXPECT_EQ(search.next(0), std::nullopt);
  EXPECT_TRUE(search.ranking().empty());
}

TEST(SweepSearch, InterruptedTrialsComeFirst) {
  SweepSearch search({.trials = 4, .rungs = {1, 3}, .eta = 3, .slots = 2});
  search.started({.trial = 0, .rung = 0}, 0);
  search.started({.trial = 1, .rung = 0}, 0);
  search.interrupted({.trial = 1, .rung = 0});
  EXPECT_EQ(search.next(0), (SweepJob{.trial = 1, .rung = 0}));
  search.started({.trial = 1, .rung = 0}, 0);
  EXPECT_EQ(search.next(0), (SweepJob{.trial = 2, .rung = 0}));
}

TEST(SweepSearch, RungsDivideAllEpochsByEta) {
  using Rungs = std::vector<std::int64_t>;
  EXPECT_EQ(halving_rungs(9, 1, 3), (Rungs{1, 3, 9}));
  EXPECT_EQ(halving_rungs(10, 1, 3), (Rungs{1, 3, 10}));
  EXPECT_EQ(halving_rungs(10, 2, 3), (Rungs{3, 10}));
  EXPECT_EQ(halving_rungs(3, 1, 1.5), (Rungs{1, 2, 3}));
  EXPECT_EQ(halving_rungs(1, 1, 3), Rungs{1});
}

TEST(SweepRanking, OrdersByOneFigure) {
  const std::vector<SweepMeasure> measures = {{.accuracy = 0.5, .loss = 0, .samples_per_second = 30},
                                              {.accuracy = 0.9, .loss = 0, .samples_per_second = 10},
                                              {.accuracy = 0.5, .loss = 0, .samples_per_second = 20}};
  using Order = std::vector<std::size_t>;
  EXPECT_EQ(ranked(SweepObjective::accuracy, measures), (Order{1, 0, 2}))
      << "of equal trials the earlier comes first";
  EXPECT_EQ(ranked(SweepObjective::samples_per_second, measures), (Order{0, 2, 1}));
}

TEST(SweepRanking, OrdersByParetoFronts) {
  const auto at = [](double accuracy, double speed) {
    return SweepMeasure{.accuracy = accuracy, .loss = 0, .samples_per_second = speed};
  };
  // 1 to 4 are the front. 0 is dominated by 2 only, 5 by all but 1.
  const std::vector<SweepMeasure> measures = {at(0.7, 40),  at(0.9, 10), at(0.8, 50),
                                              at(0.75, 55), at(0.5, 90), at(0.4, 20)};
  EXPECT_EQ(pareto_front(measures), (std::vector<std::size_t>{1, 2, 3, 4}));
  const std::vector<std::size_t> order = ranked(SweepObjective::pareto, measures);
  EXPECT_EQ((std::set<std::size_t>{order[0], order[1]}), (std::set<std::size_t>{1, 4}))
      << "the ends of the front come first";
  EXPECT_EQ(order[4], 0u);
  EXPECT_EQ(order[5], 5u);
}

SweepSpace small_space() {
  return SweepSpace({{.key = "train.batch", .values = {"8", "16", "32"}},
                     {.key = "model.name", .values = {"\"mlp\"", "\"cnn\""}}});
}

TEST(SweepSpace, GridHasEverySetting) {
  const std::vector<TuneSettings> grid = small_space().grid();
  EXPECT_EQ(grid.size(), 6u);
  EXPECT_EQ(std::set<TuneSettings>(grid.begin(), grid.end()).size(), 6u);
  EXPECT_EQ(grid[1], (TuneSettings{{"train.batch", "8"}, {"model.name", "\"cnn\""}}));
}

TEST(SweepSpace, DrawsFromListsAreUniqueAndDependOnTheSeed) {
  const std::vector<TuneSettings> all = small_space().draw(100, 1);
  EXPECT_EQ(all.size(), 6u);
  EXPECT_EQ(std::set<TuneSettings>(all.begin(), all.end()).size(), 6u);
  EXPECT_EQ(small_space().draw(4, 1), std::vector<TuneSettings>(all.begin(), all.begin() + 4));
  std::set<std::vector<TuneSettings>> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) orders.insert(small_space().draw(6, seed));
  EXPECT_GT(orders.size(), 5u);
}

TEST(SweepSpace, DrawsCoverTheWholeRange) {
  const SweepSpace space(
      {{.key = "rate", .values = {}, .range = {.min = 1e-4, .max = 1, .logarithmic = true}},
       {.key = "width", .values = {}, .range = {.min = 3, .max = 7, .whole = true}}});
  EXPECT_EQ(space.size(), std::nullopt);
  std::map<int, int> by_decade;
  std::set<std::string> widths;
  for (const TuneSettings& settings : space.draw(400, 3)) {
    const double rate = std::stod(settings.at("rate"));
    EXPECT_GE(rate, 1e-4);
    EXPECT_LE(rate, 1);
    ++by_decade[static_cast<int>(std::floor(std::log10(rate)))];
    widths.insert(settings.at("width"));
  }
  for (int decade = -4; decade < 0; ++decade) EXPECT_NEAR(by_decade[decade], 100, 40) << decade;
  EXPECT_EQ(widths, (std::set<std::string>{"3", "4", "5", "6", "7"}));
}

TEST(SweepSpace, PointsOfARangeIncludeBothEnds) {
  using Values = std::vector<std::string>;
  EXPECT_EQ(values_of({.min = 0.001, .max = 1, .logarithmic = true}, 4),
            (Values{"0.001", "0.01", "0.1", "1"}));
  EXPECT_EQ(values_of({.min = 1, .max = 3, .whole = true}, 9), (Values{"1", "2", "3"})) << "each value once";
  EXPECT_EQ(values_of({.min = 0.5, .max = 3}, 1), Values{"0.5"});
  EXPECT_EQ(values_of({.min = 0.999, .max = 0.99999}, 5).back(), "0.99999");
  EXPECT_EQ(values_of({.min = 0.001, .max = 0.12344}, 2), (Values{"0.001", "0.12344"}));
}

TEST(SweepSpace, DrawsStayInANarrowRange) {
  const SweepAxis axis{.key = "ema_decay", .values = {}, .range = {.min = 0.999, .max = 0.99999}};
  const std::vector<TuneSettings> draws = SweepSpace(std::vector{axis}).draw(100, 1);
  EXPECT_EQ(draws.size(), 100u);
  for (const TuneSettings& settings : draws) {
    const double decay = std::stod(settings.at("ema_decay"));
    EXPECT_GE(decay, 0.999);
    EXPECT_LE(decay, 0.99999);
  }
}

SweepPlan plan_of(std::int64_t jobs, std::int64_t ranks, std::int64_t threads, const char* device) {
  SweepPlan plan;
  plan.jobs = jobs;
  plan.ranks = ranks;
  plan.base.threads = threads;
  plan.base.device.device = device;
  plan.trials.resize(100);
  return plan;
}

TEST(SweepSlots, CoresAreDividedAmongTrainings) {
  const SweepResources machine{.cores = 12};
  EXPECT_EQ(deal_slots(plan_of(0, 1, 0, "cpu"), machine).count, 12);
  EXPECT_EQ(deal_slots(plan_of(0, 1, 0, "cpu"), machine).threads, 1);
  EXPECT_EQ(deal_slots(plan_of(0, 2, 3, "cpu"), machine).count, 2);
  EXPECT_EQ(deal_slots(plan_of(3, 2, 0, "auto"), machine).threads, 2);
  EXPECT_EQ(deal_slots(plan_of(0, 64, 0, "cpu"), machine).count, 1) << "more cores than the machine has";
  SweepPlan few = plan_of(0, 1, 0, "cpu");
  few.trials.resize(3);
  EXPECT_EQ(deal_slots(few, machine).count, 3) << "no more than trials";
  EXPECT_EQ(deal_slots(few, machine).threads, 4);
  SweepPlan searched = plan_of(0, 1, 0, "cpu");
  searched.trials.back()["train.threads"] = "4";
  EXPECT_EQ(deal_slots(searched, machine).count, 3) << "the trial with the most threads counts";
  searched.jobs = 1;
  EXPECT_EQ(deal_slots(searched, machine).threads, 12)
      << "trials without a number of threads share all cores";
}

TEST(SweepSlots, TrainingsGetSeparateGpus) {
  const SweepResources machine{.cores = 16, .gpus = {"4", "5", "6", "7"}};
  EXPECT_EQ(deal_slots(plan_of(0, 2, 0, "auto"), machine).devices, (std::vector<std::string>{"4,5", "6,7"}));
  EXPECT_EQ(deal_slots(plan_of(3, 1, 0, "cuda"), machine).devices, (std::vector<std::string>{"4", "5", "6"}));
  EXPECT_TRUE(deal_slots(plan_of(2, 1, 0, "cpu"), machine).devices.empty());
  const std::string told = message_of<ConfigError>([&] { deal_slots(plan_of(3, 2, 0, "cuda"), machine); });
  expect_parts(told, {"sweep.jobs = 3", "sweep.ranks = 2", "6 GPUs", " 4 ", "world.device"});
}

// The end of the repeated jobs is as far away as that of the first ones, so another trial fits beside them.
TEST(SweepSearch, RepeatedJobsStayWithinTheShareOfTheirRung) {
  SweepSearch search({.trials = 3, .rungs = {1, 3}, .eta = 3, .slots = 2});
  for (std::int64_t trial = 0; trial < 3; ++trial) {
    search.started({.trial = trial, .rung = 0}, 0);
    search.finished({.trial = trial, .rung = 0}, {.accuracy = 0.9 - 0.1 * static_cast<double>(trial)}, 1);
  }
  const SweepJob beside{.trial = 2, .rung = 1};
  for (const std::int64_t trial : {0, 1}) {
    EXPECT_EQ(search.next(0), (SweepJob{.trial = trial, .rung = 1}));
    search.started({.trial = trial, .rung = 1}, 0);
  }
  EXPECT_EQ(search.next(0), beside);
  for (const std::int64_t trial : {0, 1}) search.interrupted({.trial = trial, .rung = 1});
  for (const std::int64_t trial : {0, 1}) search.started({.trial = trial, .rung = 1}, 0);
  EXPECT_EQ(search.next(0), beside);
}

TEST(SweepPlan, MayRemoveTheEventCommand) {
  const TemporaryFolder folder("sweep_plan");
  const std::string path = (folder.path() / "sweep.toml").string();
  std::ofstream(path) << "[sweep]\nconfig = \"fashion_mnist_cnn\"\nset = [\"run.event_command=none\"]\n"
                         "[keys]\ntrain.batch = [8]\n";
  EXPECT_FALSE(read_sweep(path, Registry()).base.busy.runs_command());
}

TEST(SweepPlan, ShowsNumbersInTheirShortestForm) {
  const TemporaryFolder folder("sweep_numbers");
  const std::string path = (folder.path() / "sweep.toml").string();
  const auto plan_of_keys = [&](const std::string& keys) {
    std::ofstream(path) << "[sweep]\nconfig = \"fashion_mnist_cnn\"\nmethod = \"grid\"\n[keys]\n" << keys;
    return read_sweep(path, Registry());
  };
  std::vector<std::string> rates;
  const SweepPlan plan = plan_of_keys("optimizer.learning_rate = [0.1, 1e-5, 1.0]\n");
  for (const TuneSettings& trial : plan.trials) rates.push_back(trial.at("optimizer.learning_rate"));
  EXPECT_EQ(rates, (std::vector<std::string>{"0.1", "1e-05", "1.0"}));
  expect_parts(message_of<ConfigError>([&] { plan_of_keys("train.batch = [8.0]\n"); }),
               {"train.batch", "8.0"});
}

TEST(SweepPlan, HasALimitedSize) {
  expect_parts(message_of<ConfigError>([] { read_sweep("/dev/zero", Registry()); }), {"/dev/zero", "1 MiB"});
}

}  // namespace
}  // namespace lockstep
