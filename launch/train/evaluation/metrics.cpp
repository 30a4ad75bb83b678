// SPDX-License-Identifier: Apache-2.0
#include "launch/train/evaluation/metrics.h"

#include <algorithm>
#include <cstring>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

double quotient(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

MetricChoice feasible(MetricChoice choice, std::int64_t classes) {
  if (choice.top5 && classes <= ClassCounts::kTop)
    throw_agreed(
        ConfigError(fmt::format("run.metrics: remove top5, which is always 100 % with {} classes", classes)));
  if (choice.confusion && classes > MetricCounter::kMostConfusedClasses) {
    log::info(
        "run.metrics: confusion is omitted: its matrix would have {} x {} counts, and metrics.jsonl has it "
        "for at most {} classes",
        classes, classes, MetricCounter::kMostConfusedClasses);
    choice.confusion = false;
  }
  return choice;
}

// The mean over the classes that occur. The number of other classes is 0.
double mean_of(const std::vector<ClassScore>& scores, double ClassScore::*number) {
  double sum = 0;
  std::int64_t classes = 0;
  for (const ClassScore& score : scores) {
    sum += score.*number;
    classes += score.occurs ? 1 : 0;
  }
  return classes == 0 ? 0.0 : sum / static_cast<double>(classes);
}

}  // namespace

std::vector<std::string> listed_words(std::string_view text) {
  std::vector<std::string> words;
  if (text == "none") return words;
  for (std::size_t end = 0; !text.empty(); text.remove_prefix(std::min(end + 1, text.size()))) {
    end = std::min(text.find_first_of(", "), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
  }
  return words;
}

MetricChoice metric_choice(std::string_view words) {
  MetricChoice choice;
  for (const std::string& word : listed_words(words)) {
    choice.top5 = choice.top5 || word == kMetricNames[0];
    choice.f1 = choice.f1 || word == kMetricNames[1];
    choice.confusion = choice.confusion || word == kMetricNames[2];
    choice.iou = choice.iou || word == kMetricNames[3];
  }
  return choice;
}

std::vector<ClassScore> class_scores(const std::vector<std::int64_t>& by_class) {
  const std::size_t classes = by_class.size() / 3;
  std::vector<ClassScore> scores(classes);
  for (std::size_t k = 0; k < classes; ++k) {
    const std::int64_t samples = by_class[k], predicted = by_class[classes + k],
                       right = by_class[2 * classes + k];
    scores[k] = {.precision = quotient(right, predicted),
                 .recall = quotient(right, samples),
                 .f1 = quotient(2 * right, samples + predicted),
                 .iou = quotient(right, samples + predicted - right),
                 .occurs = samples + predicted > 0};
  }
  return scores;
}

double macro_f1(const std::vector<ClassScore>& scores) { return mean_of(scores, &ClassScore::f1); }
double mean_iou(const std::vector<ClassScore>& scores) { return mean_of(scores, &ClassScore::iou); }

std::vector<std::string_view> EvaluationMetrics::names() const {
  std::vector<std::string_view> names;
  if (top5) names.push_back(kMetricNames[0]);
  if (!by_class.empty()) names.push_back(kMetricNames[1]);
  if (!confusion.empty()) names.push_back(kMetricNames[2]);
  if (!iou_by_class.empty()) names.push_back(kMetricNames[3]);
  return names;
}

MetricCounter::MetricCounter(const MetricChoice& choice, Network& network, Communicator& host, Stream& stream)
    : network_(network), host_(host), stream_(stream), classes_(network.classes()) {
  single_output_ = network.logits().shape[1] != classes_;
  if (choice.top5 && single_output_)
    throw_agreed(ConfigError("run.metrics: remove top5: the network has a single output"));
  choice_ = feasible(choice, classes_);
  const auto classes = static_cast<std::size_t>(classes_);
  confusion_begin_ = 1 + (choice_.by_class() ? 3 * classes : 0);
  count_ = confusion_begin_ + (choice_.confusion ? classes * classes : 0);
  counts_ = Buffer(count_ * sizeof(std::int32_t), stream.device());
  sums_ = host.allocate(count_ * sizeof(std::int32_t));
  if (stream.runs_on_host()) return;
  begin_.emplace(stream.device());
  end_.emplace(stream.device());
}

void MetricCounter::begin() {
  const std::int64_t begin_ns = now_ns();
  std::memset(sums_.data(), 0, sums_.bytes());
  stream_.copy(counts_.data(), sums_.data(), counts_.bytes());
  seconds_ = seconds_between(begin_ns, now_ns());
}

void MetricCounter::count(const Batch& batch) {
  const std::int64_t begin_ns = now_ns();
  if (begin_) stream_.record(*begin_);
  const Tensor logits = network_.logits();
  const Network::Targets targets = network_.targets(batch);
  network_.backend().count_classes(
      stream_, {.batch = logits.shape[0],
                .classes = classes_,
                .single_output = single_output_,
                .loss = network_.loss_kind(),
                .type = logits.dtype,
                .logits = logits.data,
                .labels = targets.labels,
                .weights = targets.weights,
                .in_top = choice_.top5 ? part(counts_, 0) : nullptr,
                .by_class = choice_.by_class() ? part(counts_, 1) : nullptr,
                .confusion = choice_.confusion ? part(counts_, confusion_begin_) : nullptr});
  if (end_)
    stream_.record(*end_);
  else
    seconds_ += seconds_between(begin_ns, now_ns());
}

void MetricCounter::counted() {
  if (end_) seconds_ += end_->seconds_since(*begin_);
}

EvaluationMetrics MetricCounter::finish(std::int64_t samples) {
  const std::int64_t begin_ns = now_ns();
  stream_.copy(sums_.data(), counts_.data(), sums_.bytes());
  stream_.synchronize();
  host_.all_reduce(sums_.data(), count_, DType::i32, ReduceOp::sum);
  host_.stream().synchronize();
  EvaluationMetrics metrics{.classes = classes_};
  if (choice_.top5) metrics.top5 = quotient(*part(sums_, 0), samples);
  if (choice_.by_class()) {
    std::vector<ClassScore> scores = class_scores({part(sums_, 1), part(sums_, confusion_begin_)});
    metrics.samples_by_class = {part(sums_, 1), part(sums_, 1 + scores.size())};
    if (choice_.iou) {
      metrics.iou_mean = mean_iou(scores);
      for (const ClassScore& score : scores) metrics.iou_by_class.push_back(score.iou);
    }
    if (choice_.f1) {
      metrics.f1_macro = macro_f1(scores);
      metrics.by_class = std::move(scores);
    }
  }
  if (choice_.confusion) metrics.confusion = {part(sums_, confusion_begin_), part(sums_, count_)};
  metrics.seconds = seconds_ + seconds_between(begin_ns, now_ns());
  return metrics;
}

}  // namespace lockstep
