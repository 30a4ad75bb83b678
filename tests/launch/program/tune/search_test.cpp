// SPDX-License-Identifier: Apache-2.0
//
// How `lockstep tune` searches, resumes and writes, on simulated measurements. tune_command_test.cpp tests
// the program.
#include "launch/program/tune/search.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/file_text.h"
#include "core/random.h"
#include "launch/program/config/config.h"
#include "launch/program/tune/dimensions.h"
#include "launch/program/tune/journal.h"
#include "launch/program/tune/report.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// A simulated machine. Steps take `cost` times a drifting load; a block may be off by the fraction `noise`.
struct MadeUpMachine {
  std::function<double(const TuneSettings&)> cost;
  double noise = 0;
  std::uint64_t moment = 0;
  std::vector<TuneRequest> requests = {};

  BenchBlock block(const TuneSettings& settings) {
    const Random random(5, "tune");
    const double chance = random.bits(moment) / 4294967296.0 - 0.5;
    const double drift = 1 + 0.3 * std::sin(static_cast<double>(moment++) / 40);
    return {.step_seconds = cost(settings) * drift * (1 + noise * chance), .exposed_seconds = 0.1};
  }
  TuneVisit operator()(const TuneRequest& request) {
    requests.push_back(request);
    TuneVisit visit{.steps = 2.0 * request.pairs + 2, .problem = {}};
    visit.seconds = visit.steps;
    visit.blocks.push_back(block({}));
    for (int pair = 0; pair < request.pairs; ++pair) {
      visit.blocks.push_back(block(request.settings));
      visit.blocks.push_back(block({}));
    }
    return visit;
  }
};

TuneStage stage_of(const std::string& key, const std::vector<std::string>& values) {
  return {.name = key, .field = [=](const TuneSettings& best) {
            std::vector<TuneSettings> field;
            for (const std::string& value : values) {
              field.push_back(best);
              field.back()[key] = value;
            }
            return field;
          }};
}

double cost_of_two(const TuneSettings& settings) {
  static const std::map<std::string, double> kBuckets = {
      {"1", 1.2}, {"2", 0.97}, {"4", 0.8}, {"8", 0.9}, {"64", 1.1}};
  const auto bucket = settings.find("bucket"), threads = settings.find("threads");
  return (bucket == settings.end() ? 1 : kBuckets.at(bucket->second)) *
         (threads != settings.end() && threads->second == "3" ? 0.9 : 1);
}

const std::vector<TuneStage> kTwoStages = {stage_of("bucket", {"64", "1", "8", "2", "4"}),
                                           stage_of("threads", {"3", "2"})};

TEST(TuneSearch, FindsTheFastestUnderNoiseAndDrift) {
  MadeUpMachine machine{.cost = cost_of_two, .noise = 0.1};
  const TuneOutcome outcome = TuneSearch({.total = 1000, .pair_cost = 2}, std::ref(machine)).run(kTwoStages);
  EXPECT_EQ(outcome.winner, (TuneSettings{{"bucket", "4"}, {"threads", "3"}})) << outcome.reason;
  const TuneFigure figure = figure_of(outcome.confirmation);
  EXPECT_NEAR(figure.ratio, 1 / 0.72, 0.05);
  EXPECT_GE(figure.pairs, TuneSearch::kConfirmingPairs);
  EXPECT_LE(outcome.spent, 1000);

  // Few pairs for all candidates, more for the remaining ones. Every visit measures the default before and
  // after each block.
  std::map<std::string, int> pairs;
  for (const TuneCandidate& candidate : outcome.candidates)
    pairs[describe(candidate.settings)] = static_cast<int>(candidate.ratios.size());
  EXPECT_EQ(pairs.size(), 7u);
  EXPECT_GT(pairs.at("bucket=4"), pairs.at("bucket=1"));
  EXPECT_EQ(pairs.at("bucket=1"), 2);
  EXPECT_TRUE(machine.requests.back().confirms);
  std::size_t default_blocks = 0;
  for (const TuneRequest& request : machine.requests)
    default_blocks += static_cast<std::size_t>(request.pairs) + 1;
  EXPECT_EQ(outcome.default_blocks.size(), default_blocks);
}

TEST(TuneSearch, DifferencesWithinNoiseChangeNothing) {
  MadeUpMachine machine{.cost = [](const TuneSettings&) { return 1.0; }, .noise = 0.2};
  const TuneOutcome outcome = TuneSearch({.total = 1000, .pair_cost = 2}, std::ref(machine)).run(kTwoStages);
  EXPECT_EQ(outcome.winner, TuneSettings{}) << outcome.reason;
  EXPECT_LE(figure_of(outcome.confirmation).low, 1) << outcome.reason;
  for (const TuneCandidate& candidate : outcome.candidates)
    EXPECT_FALSE(candidate.ratios.empty()) << describe(candidate.settings);
  EXPECT_NE(outcome.reason, "");
}

// The candidate leads by luck in the search, and not in the confirmation.
TEST(TuneSearch, CandidatesMustBeConfirmed) {
  MadeUpMachine machine{.cost = cost_of_two};
  const auto measure = [&](const TuneRequest& request) {
    machine.noise = 0;
    if (request.confirms) machine.cost = [](const TuneSettings&) { return 1.0; };
    if (request.confirms) machine.noise = 0.1;
    return machine(request);
  };
  const TuneOutcome outcome = TuneSearch({.total = 1000, .pair_cost = 2}, measure).run(kTwoStages);
  EXPECT_EQ(outcome.chosen.at("bucket"), "4");
  EXPECT_EQ(outcome.winner, TuneSettings{});
  const TuneFigure figure = figure_of(outcome.confirmation);
  EXPECT_GE(figure.pairs, TuneSearch::kConfirmingPairs);
  EXPECT_LE(figure.low, 1);
  expect_parts(outcome.reason, {describe(outcome.chosen), describe(figure)});
}

TEST(TuneSearch, SmallBudgetIsRespected) {
  for (const double total : {1.0, 20.0, 60.0}) {
    MadeUpMachine machine{.cost = cost_of_two};
    const TuneOutcome outcome =
        TuneSearch({.total = total, .pair_cost = 2}, std::ref(machine)).run(kTwoStages);
    EXPECT_LE(outcome.spent, total + 2 * (TuneSearch::kConfirmingPairs + 1) + 12) << total;
    EXPECT_EQ(outcome.candidates.size(), 7u) << "candidates without a measurement are listed, too";
  }
}

TEST(TuneSearch, SettingsThatCannotRunAreDropped) {
  MadeUpMachine machine{.cost = cost_of_two};
  const auto measure = [&](const TuneRequest& request) {
    if (request.settings.contains("bucket") && request.settings.at("bucket") == "4")
      return TuneVisit{.seconds = 1, .problem = "no memory"};
    return machine(request);
  };
  const TuneOutcome outcome = TuneSearch({.total = 1000, .pair_cost = 2}, measure).run(kTwoStages);
  EXPECT_EQ(outcome.winner.at("bucket"), "8");
  EXPECT_EQ(outcome.candidates[4].problem, "no memory");
}

TEST(TuneFigure, EnclosesTheMedian) {
  EXPECT_EQ(figure_of({}).pairs, 0);
  const TuneFigure three = figure_of({1.2, 1.0, 1.1});
  EXPECT_EQ(std::make_tuple(three.ratio, three.low, three.high), std::make_tuple(1.1, 1.0, 1.2));
  // The bounds of the sign test: with 9 values the lowest and the highest may be left out, with 8 none.
  EXPECT_EQ(figure_of({1, 2, 3, 4, 5, 6, 7, 8}).low, 1);
  const TuneFigure nine = figure_of({9, 8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_EQ(std::make_tuple(nine.ratio, nine.low, nine.high), std::make_tuple(5.0, 2.0, 8.0));
  EXPECT_EQ(ratios_of({.blocks = {{2, 0}, {2, 0}, {4, 0}, {1, 0}, {4, 0}}, .problem = {}}),
            (std::vector<double>{1.5, 4}));
}

class TuneDimensions : public testing::Test {
 protected:
  // The names of the dimensions and of all settings tried on top of the unchanged configuration.
  std::set<std::string> tried(const TuneSituation& situation) const {
    std::set<std::string> found;
    for (const TuneStage& stage : tune_stages(config_, {}, situation))
      for (const TuneSettings& settings : stage.field({})) found.insert(describe(settings));
    return found;
  }
  static std::string as_given(const std::array<double, 3>& mib) {
    return fmt::format("{} {} {}", mib[0], mib[1], mib[2]);
  }

  Config config_;
};

TEST_F(TuneDimensions, OneRankTriesComputeSettings) {
  const TuneSituation situation{.threads = 8, .cores = 8, .buckets = as_given};
  EXPECT_EQ(tried(situation),
            (std::set<std::string>{"train.threads=7", "train.threads=6", "train.threads=4"}));
  config_.reproducible = true;
  EXPECT_TRUE(tried(situation).empty());
}

TEST_F(TuneDimensions, RanksTryDistinctBuckets) {
  TuneSituation situation{.ranks = 2, .threads = 1, .buckets = as_given};
  std::set<std::string> found = tried(situation);
  EXPECT_TRUE(found.contains("comm.bucket_mib=[1, 4, 1]"));
  EXPECT_TRUE(found.contains("comm.bucket_mib=[1, 25, 0.25]"));
  EXPECT_FALSE(found.contains("comm.bucket_mib=[1, 25, 1]")) << "this is the configured value";
  EXPECT_TRUE(found.contains("comm.overlap=false"));
  EXPECT_EQ(found.size(), 9u) << "5 sizes, 3 ends, overlap";
  // A network of 5 MiB: larger bucket sizes give one bucket.
  situation.buckets = [](std::array<double, 3> mib) {
    for (double& each : mib) each = std::min(each, 5.0);
    return as_given(mib);
  };
  found = tried(situation);
  EXPECT_TRUE(found.contains("comm.bucket_mib=[1, 4, 1]"));
  EXPECT_FALSE(found.contains("comm.bucket_mib=[1, 8, 1]"));
  EXPECT_FALSE(found.contains("comm.bucket_mib=[1, 64, 1]"));
  EXPECT_EQ(bucket_mib_of(config_, {{"comm.bucket_mib", "[0.25, 8, 1]"}}),
            (std::array<double, 3>{0.25, 8, 1}));
}

TEST_F(TuneDimensions, GpusTryGpuSettings) {
  const TuneSituation situation{.ranks = 2, .gpu = true, .threads = 4, .cores = 4, .buckets = as_given};
  const std::set<std::string> found = tried(situation);
  for (const char* key :
       {"comm.max_ctas=2", "comm.nvls_ctas=4", "comm.min_ctas=16", "comm.cga_cluster_size=0",
        "comm.gradient_memory=\"registered\"", "comm.gradient_memory=\"plain\"", "train.cuda_graph=false"})
    EXPECT_TRUE(found.contains(key)) << key;
  EXPECT_FALSE(found.contains("train.threads=3"));
  EXPECT_FALSE(found.contains("comm.cta_policy=\"zero\"")) << "has no effect on all-reduce";
  EXPECT_FALSE(found.contains("comm.ctas_beside_compute=2")) << "the tuner is not loaded";
  config_.device_communicator.ctas_beside_compute = 1;
  EXPECT_TRUE(tried(situation).contains("comm.ctas_beside_compute=2"));
  config_.gradients.exchange = ExchangeForm::sharded;
  EXPECT_TRUE(tried(situation).contains("comm.cta_policy=\"zero\""));
  TuneSituation nodes{.ranks = 2, .nodes = 2, .gpu = true, .buckets = as_given};
  EXPECT_FALSE(tried(nodes).contains("comm.between_nodes=\"direct\"")) << "NCCL sums";
  nodes.gpu = false;
  EXPECT_TRUE(tried(nodes).contains("comm.between_nodes=\"direct\""));
}

class TuneJournalFile : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "tune.jsonl"; }
  std::string text() const { return file_text(path()); }
  void write(const std::string& text) const { folder_.write("tune.jsonl", Bytes(text.begin(), text.end())); }
  std::string error(const TuneHeader& header) const {
    try {
      TuneJournal(path(), header, false);
    } catch (const Error& error) {
      return fmt::format("{}: {}", error.exit_code(), error.what());
    }
    return {};
  }

  TemporaryFolder folder_;
  TuneHeader header_{.config = to_toml(Config{}), .program = "0.1 abc", .ranks = 2, .device = "cpu"};
  TuneRequest request_{.settings = {{"comm.overlap", "false"}}};
};

TEST_F(TuneJournalFile, ResumesAnInterruptedSearch) {
  MadeUpMachine machine{.cost = cost_of_two, .noise = 0.1};
  const TuneBudget budget{.total = 300, .pair_cost = 2};
  int measured = 0;
  // A search with a journal, stopped in the middle of its `most`-th measurement.
  const auto search = [&](int most) {
    TuneJournal journal(path(), header_, false);
    measured = 0;
    return TuneSearch(budget,
                      [&](const TuneRequest& request) {
                        if (std::optional<TuneVisit> kept = journal.take(request)) return *kept;
                        if (++measured > most) throw IoError("killed");
                        const TuneVisit visit = machine(request);
                        journal.append(request, visit);
                        return visit;
                      })
        .run(kTwoStages);
  };
  EXPECT_THROW(search(4), IoError);
  std::ofstream(path(), std::ios::app) << R"({"settings":{"bucket":"2"},"conf)";  // an incomplete line
  const TuneOutcome resumed = search(1000);
  const int rest = measured;
  EXPECT_GT(rest, 0);
  const TuneOutcome again = search(0);
  EXPECT_EQ(measured, 0);
  EXPECT_EQ(again.winner, resumed.winner);
  EXPECT_EQ(again.confirmation, resumed.confirmation);
  EXPECT_EQ(again.spent, resumed.spent);
  EXPECT_EQ(TuneJournal(path(), header_, false).measurements_found(), 4 + rest);
}

TEST_F(TuneJournalFile, MeasurementsOfAnotherSetupAreNotReused) {
  TuneJournal(path(), header_, false).append(request_, {.blocks = {{1, 0.5}}, .problem = {}});
  EXPECT_EQ(error(header_), "");
  TuneHeader other = header_;
  other.ranks = 4;
  EXPECT_TRUE(error(other).starts_with("78: ")) << error(other);
  EXPECT_TRUE(std::regex_search(error(other), std::regex(R"(\branks\D+\b2\D+\b4\b)"))) << error(other);
  expect_parts(error(other), {path().string(), "--fresh"});
  Config config;
  config.loader.batch = 7;
  other = header_;
  other.config = to_toml(config);
  EXPECT_TRUE(error(other).starts_with("78: ")) << error(other);
  expect_parts(error(other), {"train.batch"});

  TuneJournal fresh(path(), other, true);
  EXPECT_EQ(fresh.measurements_found(), 0);
  EXPECT_FALSE(fresh.take(request_));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "tune.1.jsonl"));
}

TEST_F(TuneJournalFile, KeepsAProblemThatIsNotUtf8) {
  const TuneVisit failed{.problem = "cannot read caf\xe9"};
  EXPECT_FALSE(visit_from_text(to_text(failed)).problem.empty());
  TuneJournal(path(), header_, false).append(request_, failed);
  EXPECT_TRUE(TuneJournal(path(), header_, false).take(request_));
}

TEST_F(TuneJournalFile, FreshRenamesALinkWhoseTargetIsGone) {
  std::filesystem::create_symlink("gone.jsonl", path());
  EXPECT_EQ(TuneJournal(path(), header_, true).measurements_found(), 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path() / "tune.1.jsonl"));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path())));
}

TEST_F(TuneJournalFile, MalformedJournalIsRefusedWithItsLine) {
  TuneJournal(path(), header_, false);
  const std::string first = text();
  for (const char* line : {"nonsense\n", "{}\n"}) {
    write(first + line);
    EXPECT_TRUE(error(header_).starts_with("65: ")) << error(header_);
    expect_parts(error(header_), {path().string() + ":2"});
  }
  write("{}\n");
  expect_parts(error(header_), {path().string() + ":1"});
  write("{\"lockstep_tune\"");  // killed while writing the first line
  EXPECT_EQ(error(header_), "");
  EXPECT_EQ(text(), first);
}

TEST(TuneReport, WinningConfigurationStatesItsGains) {
  MadeUpMachine machine{.cost = [](const TuneSettings& settings) { return settings.empty() ? 1.0 : 0.5; }};
  const TuneOutcome outcome = TuneSearch({.total = 300, .pair_cost = 2}, std::ref(machine))
                                  .run({stage_of("comm.overlap", {"false"})});
  Config config;
  config.dataset.path = "data";
  config.gradients.overlap = false;
  const TuneFacts facts{.date = "2026-11-22 10:00:00", .processor = "some processor", .ranks = 2};
  const std::string toml = tuned_toml(config, outcome, facts, {});
  EXPECT_TRUE(toml.starts_with(kTunedMark)) << toml;
  // Comments have the gain of all changes in the head, and that of a key in the line before it.
  const TuneFigure figure = figure_of(outcome.confirmation);
  EXPECT_NEAR(figure.ratio, 2, 0.1);
  expect_parts(toml.substr(0, toml.find("\n[")), {describe(figure)});
  const std::size_t end = toml.find("\noverlap = false\n");
  ASSERT_NE(end, std::string::npos) << toml;
  const std::size_t begin = toml.rfind('\n', end - 1) + 1;
  const TuneFigure of_key = outcome.candidates.at(0).figure();
  EXPECT_EQ(of_key.pairs, 6);
  expect_parts(toml.substr(begin, end - begin), {"# ", describe(of_key), "6 pairs"});
  TemporaryFolder folder;
  const auto loaded = [&](const std::string& text) {
    folder.write("tuned.toml", Bytes(text.begin(), text.end()));
    return to_toml(load_config((folder.path() / "tuned.toml").string(), {}));
  };
  EXPECT_EQ(loaded(toml), to_toml(config));
  TuneOutcome failed = outcome;
  failed.winner.clear();
  failed.reason = "the confirmation failed: a message\nof two lines";
  EXPECT_EQ(loaded(tuned_toml(config, failed, facts, {})), to_toml(config));

  TuneOutcome more = outcome;
  more.candidates.push_back({.settings = {{"train.threads", "3"}}});
  const std::string text = tune_table(more, facts, {});
  EXPECT_EQ(std::ranges::count(text, '\n'), 5) << "header, default, candidate, confirmation, not measured:\n"
                                               << text;
  EXPECT_TRUE(text.ends_with('\n'));
  TuneFacts large = facts;
  large.global_batch = 1'000'000;
  EXPECT_EQ(tune_table(outcome, large, {}).find("e+"), std::string::npos) << "an exponent in samples/s";
  const std::string narrow = tune_table(outcome, facts, {.present = true, .columns = 80});
  EXPECT_LE(longest_line(narrow), 80u) << narrow;
  EXPECT_GE(lines_of(narrow).size(), 4u) << "header, default, candidate and its confirmation";

  const auto evidence = nlohmann::json::parse(tune_evidence(outcome, facts));
  EXPECT_EQ(evidence["winner"]["comm.overlap"], "false");
  EXPECT_EQ(evidence["candidates"][0]["blocks"].size(), evidence["candidates"][0]["figure"]["pairs"]);
  EXPECT_FALSE(bucket_chart(config, outcome, facts)) << "no sizes were compared";
}

}  // namespace
}  // namespace lockstep
