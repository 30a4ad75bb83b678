// SPDX-License-Identifier: Apache-2.0
//
// Metrics: values that an evaluation reports besides loss and accuracy (run.metrics). Each rank counts its
// samples on its device. Counts are integers, so metrics do not depend on the number of ranks. The time that
// counting takes is measured.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/stream.h"
#include "core/tensor/batch.h"
#include "core/tensor/buffer.h"
#include "models/network.h"

namespace lockstep {

struct MetricChoice {
  bool top5 = false;
  bool f1 = false;
  bool confusion = false;
  bool iou = false;

  bool any() const { return top5 || f1 || confusion || iou; }
  bool by_class() const { return f1 || iou; }  // needs ClassCounts::by_class
};

inline constexpr std::array<std::string_view, 4> kMetricNames = {"top5", "f1", "confusion", "iou"};

// Splits at commas and spaces; "none": no words.
std::vector<std::string> listed_words(std::string_view text);
// Parses words of kMetricNames; ignores other words.
MetricChoice metric_choice(std::string_view words);

// Fractions; 0 if the denominator is 0.
struct ClassScore {
  double precision = 0;  // of the samples predicted as this class
  double recall = 0;     // of the samples of this class
  double f1 = 0;         // harmonic mean of the two
  double iou = 0;        // intersection of the two sets over their union
  bool occurs = false;   // among labels or predictions
};

// by_class: as ClassCounts::by_class.
std::vector<ClassScore> class_scores(const std::vector<std::int64_t>& by_class);
// The mean over the classes that occur, as scikit-learn computes it (average="macro", zero_division=0).
double macro_f1(const std::vector<ClassScore>& scores);
// The mean over the classes that occur.
double mean_iou(const std::vector<ClassScore>& scores);

struct EvaluationMetrics {
  std::optional<double> top5;                       // fraction of the samples
  std::optional<double> f1_macro = {};              // of by_class
  std::vector<ClassScore> by_class;                 // with f1; else empty
  std::optional<double> iou_mean = {};              // mean_iou()
  std::vector<double> iou_by_class = {};            // with iou; else empty
  std::vector<std::int64_t> samples_by_class = {};  // by label, with f1 or iou; else empty
  std::vector<std::int64_t> confusion;              // [labels, predictions], with confusion; else empty
  std::int64_t classes = 0;
  double seconds = 0;  // spent counting on this rank; kernels by GPU time

  // The kMetricNames that have values.
  std::vector<std::string_view> names() const;
};

// Counts on the stream's device, one evaluation after another.
class MetricCounter {
 public:
  static constexpr std::int64_t kMostConfusedClasses = 100;

  // Collective over host memory. The network, `host` and the stream outlive this. top5 with at most five
  // classes throws ConfigError on every rank. The confusion matrix is omitted, with a log line, for more
  // than kMostConfusedClasses classes.
  MetricCounter(const MetricChoice& choice, Network& network, Communicator& host, Stream& stream);

  // True if any metric is counted.
  bool any() const { return choice_.any(); }
  void begin();
  // Enqueues the counts of the batch of the network's last forward pass.
  void count(const Batch& batch);
  // Call when the stream has completed count().
  void counted();
  // Collective; waits for the stream. samples: of all ranks.
  EvaluationMetrics finish(std::int64_t samples);

 private:
  std::int32_t* part(Buffer& memory, std::size_t begin) const {
    return reinterpret_cast<std::int32_t*>(memory.data()) + begin;
  }

  MetricChoice choice_;
  Network& network_;
  Communicator& host_;
  Stream& stream_;
  std::int64_t classes_;
  bool single_output_ = false;                   // see ClassCounts
  std::size_t confusion_begin_ = 0, count_ = 0;  // layout: in_top, by_class, confusion matrix
  Buffer counts_;                                // device memory
  Buffer sums_;                                  // host memory
  std::optional<TimedEvent> begin_, end_;        // on a GPU
  double seconds_ = 0;
};

}  // namespace lockstep
