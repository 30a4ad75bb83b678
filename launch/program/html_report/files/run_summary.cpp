// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/files/run_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace lockstep {
namespace {

// The weighted mean of the finite values.
class WeightedMean {
 public:
  void add(double value, double weight) {
    if (!std::isfinite(value) || !(weight > 0)) return;
    sum_ += value * weight;
    weight_ += weight;
  }
  double value() const { return weight_ > 0 ? sum_ / weight_ : kNotTold; }

 private:
  double sum_ = 0, weight_ = 0;
};

void add_told(double& sum, double value) {
  if (std::isfinite(value)) sum = std::isfinite(sum) ? sum + value : value;
}

bool same_buckets(const EpochCommunication& one, const EpochCommunication& other) {
  return one.bucket_bytes == other.bucket_bytes && one.by_rank.size() == other.by_rank.size();
}

void add_communication(EpochCommunication& sum, const EpochCommunication& more) {
  sum.mine.steps += more.mine.steps;
  for (std::size_t i = 0; i < sum.by_rank.size(); ++i) {
    for (double RankCommunication::*part :
         {&RankCommunication::exposed, &RankCommunication::hidden, &RankCommunication::waited,
          &RankCommunication::wire, &RankCommunication::starved, &RankCommunication::no_core})
      add_told(sum.by_rank[i].*part, more.by_rank[i].*part);
    std::vector<double>& buckets = sum.exposed_by_bucket[i];
    const std::vector<double>& others = more.exposed_by_bucket[i];
    for (std::size_t j = 0; j < std::min(buckets.size(), others.size()); ++j) add_told(buckets[j], others[j]);
  }
  for (std::size_t i = 0; i < sum.mine.buckets.size(); ++i)
    for (double BucketSums::*part : {&BucketSums::exposed, &BucketSums::hidden, &BucketSums::late,
                                     &BucketSums::wire, &BucketSums::starved})
      add_told(sum.mine.buckets[i].*part, more.mine.buckets[i].*part);
}

std::string name_of_folder(const RunFolder& run) {
  const auto whole = (std::filesystem::absolute(run.folder) / "").lexically_normal().parent_path();
  return whole.has_filename() ? whole.filename().string() : whole.string();
}

struct EpochAccount {
  WholeAccount sum;
  std::int64_t told_steps = 0;  // 0: lines of an earlier version, whose steps are estimated
};

double seconds_trained(const StepLine& line) { return line.account.total(); }
double seconds_trained(const EpochReport& epoch) { return epoch.train_seconds; }

// The sums of each epoch's lines.
template <typename Line>
std::map<std::int64_t, EpochAccount> accounts_by_epoch(const std::vector<Line>& lines) {
  std::map<std::int64_t, EpochAccount> accounts;
  std::int64_t before = 0;
  for (const Line& line : lines) {
    auto& [sum, told_steps] = accounts[line.epoch];
    told_steps += line.steps;
    sum.steps += static_cast<double>(line.steps > 0 ? line.steps : line.step - before);
    sum.account += line.account;
    add_told(sum.seconds, seconds_trained(line));
    before = line.step;
  }
  return accounts;
}

}  // namespace

RunHeadline headline_of(const RunFolder& run) {
  RunHeadline headline{.epochs = run.epochs.size()};
  WeightedMean busy, peak, rate;
  const auto add_rates = [&](const auto& line) {
    busy.add(line.busy, seconds_trained(line));
    peak.add(line.peak.value_or(kNotTold), seconds_trained(line));
    rate.add(line.samples_per_second, seconds_trained(line));
  };
  for (const EpochReport& epoch : run.epochs) {
    add_rates(epoch);
    add_told(headline.evaluation_seconds, epoch.evaluation_seconds);
    headline.steps = static_cast<double>(epoch.step);
    headline.train_loss = epoch.train_loss;
    if (!epoch.evaluation) continue;
    headline.test_accuracy = epoch.evaluation->accuracy;
    headline.test_loss = epoch.evaluation->loss;
    headline.top5 = metric_of(*epoch.evaluation, &EvaluationMetrics::top5);
    headline.f1_macro = metric_of(*epoch.evaluation, &EvaluationMetrics::f1_macro);
    headline.iou_mean = metric_of(*epoch.evaluation, &EvaluationMetrics::iou_mean);
  }
  if (run.epochs.empty()) std::ranges::for_each(run.steps, add_rates);
  headline.train_seconds = whole_account(run).seconds;
  if (!run.steps.empty())
    headline.steps = std::max(headline.steps, static_cast<double>(run.steps.back().step));
  headline.busy = busy.value();
  headline.peak = peak.value();
  headline.samples_per_second = rate.value();
  return headline;
}

double metric_of(const Evaluation& evaluation, std::optional<double> EvaluationMetrics::*metric) {
  return evaluation.metrics ? ((*evaluation.metrics).*metric).value_or(kNotTold) : kNotTold;
}

std::vector<EvaluationRecord> evaluation_points(const RunFolder& run) {
  std::vector<EvaluationRecord> points = run.evaluations;
  for (const EpochReport& epoch : run.epochs)
    if (epoch.evaluation)
      points.push_back({.epoch = epoch.epoch, .step = epoch.step, .evaluation = *epoch.evaluation});
  std::ranges::stable_sort(points, {}, &EvaluationRecord::step);
  return points;
}

std::vector<AccountPoint> account_points(const RunFolder& run) {
  std::vector<AccountPoint> points;
  const auto add = [&](const auto& line) {
    points.push_back({.step = static_cast<double>(line.step), .account = line.account});
  };
  std::ranges::for_each(run.steps, add);
  if (points.empty()) std::ranges::for_each(run.epochs, add);
  return points;
}

// A resumed epoch's line in metrics.jsonl lacks the steps before the resume, which steps.jsonl has.
// steps.jsonl lacks those for which run.log_every was 0.
WholeAccount whole_account(const RunFolder& run) {
  std::map<std::int64_t, EpochAccount> accounts = accounts_by_epoch(run.steps);
  for (const auto& [epoch, account] : accounts_by_epoch(run.epochs)) {
    const auto [found, is_new] = accounts.try_emplace(epoch, account);
    if (!is_new && account.told_steps > found->second.told_steps) found->second = account;
  }
  WholeAccount whole;
  for (const auto& [epoch, each] : accounts) {
    whole.steps += each.sum.steps;
    whole.account += each.sum.account;
    add_told(whole.seconds, each.sum.seconds);
  }
  return whole;
}

std::vector<GivenAdvice> advice_of(const RunFolder& run) {
  std::vector<GivenAdvice> given;
  for (const EpochReport& epoch : run.epochs) {
    if (!epoch.advice) continue;
    const Advice& advice = *epoch.advice;
    auto same = std::ranges::find_if(given, [&](const GivenAdvice& each) {
      return each.advice.cause == advice.cause && each.advice.key == advice.key &&
             each.advice.value == advice.value;
    });
    if (same == given.end()) same = given.insert(given.end(), GivenAdvice{});
    *same = {.advice = advice, .last_epoch = static_cast<double>(epoch.epoch), .times = same->times + 1};
  }
  std::ranges::stable_sort(given, std::greater<>(), &GivenAdvice::last_epoch);
  return given;
}

EpochCommunication whole_communication(const RunFolder& run) {
  EpochCommunication sum;
  for (auto epoch = run.epochs.rbegin(); epoch != run.epochs.rend(); ++epoch) {
    if (!epoch->communication) continue;
    if (sum.mine.steps == 0)
      sum = *epoch->communication;
    else if (same_buckets(sum, *epoch->communication))
      add_communication(sum, *epoch->communication);
  }
  return sum;
}

std::vector<double> busy_by_rank(const RunFolder& run) {
  std::vector<WeightedMean> means;
  for (const EpochReport& epoch : run.epochs) {
    means.resize(std::max(means.size(), epoch.busy_by_rank.size()));
    for (std::size_t rank = 0; rank < epoch.busy_by_rank.size(); ++rank)
      means[rank].add(epoch.busy_by_rank[rank], epoch.train_seconds);
  }
  std::vector<double> busy;
  busy.reserve(means.size());
  for (const WeightedMean& mean : means) busy.push_back(mean.value());
  return busy;
}

std::vector<FactRow> fact_rows(std::span<const RunFolder> runs, std::vector<RunFact> RunFolder::*facts) {
  std::vector<FactRow> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [key, value] : runs[i].*facts) {
      auto row = std::ranges::find(rows, key, &FactRow::key);
      if (row == rows.end())
        row =
            rows.insert(rows.end(), {.key = key, .values = std::vector<std::string>(runs.size(), "\u2013")});
      row->values[i] = value;
    }
  }
  for (FactRow& row : rows) {
    std::set<std::string> values;
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (!(runs[i].*facts).empty()) values.insert(row.values[i]);
    row.differs = values.size() > 1;
  }
  return rows;
}

std::vector<std::string> run_names(std::span<const RunFolder> runs) {
  std::vector<std::string> names;
  std::set<std::string> distinct;
  for (const RunFolder& run : runs) distinct.insert(names.emplace_back(name_of_folder(run)));
  if (distinct.size() < runs.size())
    for (std::size_t i = 0; i < runs.size(); ++i) names[i] = runs[i].folder.string();
  return names;
}

}  // namespace lockstep
