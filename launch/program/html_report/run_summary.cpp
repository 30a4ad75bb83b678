// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/run_summary.h"

#include <algorithm>
#include <cmath>
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

bool same_buckets(const CommunicationLine& one, const CommunicationLine& other) {
  return std::ranges::equal(one.by_bucket, other.by_bucket, {}, &BucketLine::bytes, &BucketLine::bytes) &&
         one.by_rank.size() == other.by_rank.size();
}

void add_communication(CommunicationLine& sum, const CommunicationLine& more) {
  sum.steps += more.steps;
  for (std::size_t i = 0; i < sum.by_rank.size(); ++i)
    for (double RankLine::*part : {&RankLine::exposed, &RankLine::hidden, &RankLine::waited, &RankLine::wire,
                                   &RankLine::starved, &RankLine::no_core})
      add_told(sum.by_rank[i].*part, more.by_rank[i].*part);
  for (std::size_t i = 0; i < sum.by_rank.size(); ++i) {
    std::vector<double>& buckets = sum.by_rank[i].exposed_by_bucket;
    const std::vector<double>& others = more.by_rank[i].exposed_by_bucket;
    for (std::size_t j = 0; j < std::min(buckets.size(), others.size()); ++j) add_told(buckets[j], others[j]);
  }
  for (std::size_t i = 0; i < sum.by_bucket.size(); ++i)
    for (double BucketLine::*part : {&BucketLine::exposed, &BucketLine::hidden, &BucketLine::late,
                                     &BucketLine::wire, &BucketLine::starved})
      add_told(sum.by_bucket[i].*part, more.by_bucket[i].*part);
}

std::string name_of_folder(const RunFolder& run) {
  const auto whole = (std::filesystem::absolute(run.folder) / "").lexically_normal().parent_path();
  return whole.has_filename() ? whole.filename().string() : whole.string();
}

}  // namespace

RunHeadline headline_of(const RunFolder& run) {
  RunHeadline headline{.epochs = run.epochs.size()};
  WeightedMean busy, peak, rate;
  for (const EpochLine& epoch : run.epochs) {
    busy.add(epoch.busy, epoch.train_seconds);
    peak.add(epoch.peak, epoch.train_seconds);
    rate.add(epoch.samples_per_second, epoch.train_seconds);
    add_told(headline.train_seconds, epoch.train_seconds);
    add_told(headline.evaluation_seconds, epoch.evaluation_seconds);
    headline.steps = epoch.steps;
    headline.train_loss = epoch.train_loss;
    if (!epoch.evaluated()) continue;
    headline.test_accuracy = epoch.test_accuracy;
    headline.test_loss = epoch.test_loss;
    headline.top5 = epoch.top5;
    headline.f1_macro = epoch.f1_macro;
  }
  if (run.epochs.empty()) {
    for (const StepPoint& step : run.steps) {
      busy.add(step.busy, step.account.total());
      rate.add(step.samples_per_second, step.account.total());
      add_told(headline.train_seconds, step.account.total());
    }
  }
  if (!run.steps.empty()) headline.steps = std::max(headline.steps, run.steps.back().step);
  headline.busy = busy.value();
  headline.peak = peak.value();
  headline.samples_per_second = rate.value();
  return headline;
}

std::vector<EvaluationPoint> evaluation_points(const RunFolder& run) {
  std::vector<EvaluationPoint> points = run.evaluations;
  for (const EpochLine& epoch : run.epochs) {
    if (!epoch.evaluated()) continue;
    points.push_back({.step = epoch.steps,
                      .test_loss = epoch.test_loss,
                      .test_accuracy = epoch.test_accuracy,
                      .top5 = epoch.top5,
                      .f1_macro = epoch.f1_macro});
  }
  std::ranges::stable_sort(points, {}, &EvaluationPoint::step);
  return points;
}

std::vector<AccountPoint> account_points(const RunFolder& run) {
  std::vector<AccountPoint> points;
  for (const StepPoint& step : run.steps) points.push_back({.step = step.step, .account = step.account});
  if (!points.empty()) return points;
  for (const EpochLine& epoch : run.epochs) points.push_back({.step = epoch.steps, .account = epoch.account});
  return points;
}

WholeAccount whole_account(const RunFolder& run) {
  WholeAccount whole;
  const auto add = [&](double steps, const StepAccount& account) {
    whole.steps = steps;
    for (std::size_t phase = 0; phase < kPhases; ++phase)
      whole.account.seconds[phase] += account.seconds[phase];
  };
  for (const EpochLine& epoch : run.epochs) add(epoch.steps, epoch.account);
  if (run.epochs.empty())
    for (const StepPoint& step : run.steps) add(step.step, step.account);
  return whole;
}

std::vector<GivenAdvice> advice_of(const RunFolder& run) {
  std::vector<GivenAdvice> given;
  for (const EpochLine& epoch : run.epochs) {
    for (const AdviceLine& advice : epoch.advice) {
      auto same = std::ranges::find_if(given, [&](const GivenAdvice& each) {
        return each.advice.cause == advice.cause && each.advice.key == advice.key &&
               each.advice.value == advice.value;
      });
      if (same == given.end()) same = given.insert(given.end(), GivenAdvice{});
      *same = {.advice = advice, .last_epoch = epoch.epoch, .times = same->times + 1};
    }
  }
  std::ranges::stable_sort(given, std::greater<>(), &GivenAdvice::last_epoch);
  return given;
}

CommunicationLine whole_communication(const RunFolder& run) {
  CommunicationLine sum;
  for (auto epoch = run.epochs.rbegin(); epoch != run.epochs.rend(); ++epoch) {
    const CommunicationLine& told = epoch->communication;
    if (told.steps > 0 && sum.steps == 0)
      sum = told;
    else if (told.steps > 0 && same_buckets(sum, told))
      add_communication(sum, told);
  }
  return sum;
}

std::vector<double> busy_by_rank(const RunFolder& run) {
  std::vector<WeightedMean> means;
  for (const EpochLine& epoch : run.epochs) {
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
