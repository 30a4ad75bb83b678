// SPDX-License-Identifier: Apache-2.0
//
// Metrics: what an evaluation tells beside loss and accuracy (run.metrics), each rank counting its samples on
// its device. Counts are whole numbers, so that the metrics do not depend on how many ranks there are. What
// counting takes is measured: metrics have a price.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/batch.h"
#include "core/buffer.h"
#include "core/stream.h"
#include "models/network.h"

namespace lockstep {

struct MetricChoice {
  bool top5 = false;
  bool f1 = false;
  bool confusion = false;

  bool any() const { return top5 || f1 || confusion; }
};

inline constexpr std::array<std::string_view, 3> kMetricNames = {"top5", "f1", "confusion"};

// Words with commas or spaces between them; "none": no word.
std::vector<std::string> listed_words(std::string_view text);
// Of words of kMetricNames; others are passed over.
MetricChoice metric_choice(std::string_view words);

// Fractions; 0 where a denominator is.
struct ClassScore {
  double precision = 0;  // of what was predicted as the class
  double recall = 0;     // of the class
  double f1 = 0;         // their harmonic mean
  bool occurs = false;   // among labels or predictions
};

// by_class: as ClassCounts::by_class.
std::vector<ClassScore> class_scores(const std::vector<std::int64_t>& by_class);
// The mean over the classes that occur, as scikit-learn has it (average="macro", zero_division=0).
double macro_f1(const std::vector<ClassScore>& scores);

struct EvaluationMetrics {
  std::optional<double> top5;           // fraction of the samples
  std::vector<ClassScore> by_class;     // of f1; else empty
  std::vector<std::int64_t> confusion;  // [classes, classes], by label and prediction; else empty
  std::int64_t classes = 0;
  double seconds = 0;  // that counting took: of this rank, on a GPU its own time

  // Of kMetricNames, what is told here.
  std::vector<std::string_view> names() const;
};

// Counts on the stream's device, one evaluation after another.
class MetricCounter {
 public:
  static constexpr std::int64_t kMostConfusedClasses = 100;

  // Collective over host memory. The network and `host` outlive it. Throws a ConfigError on every rank alike
  // for top5 of five classes or fewer. A confusion matrix of too many classes is not counted, which the log
  // tells.
  MetricCounter(const MetricChoice& choice, Network& network, Communicator& host, Stream& stream);

  // Whether there is something to count.
  bool any() const { return choice_.any(); }
  void begin();
  // Enqueued: of the batch that the network's last forward pass was given.
  void count(const Batch& batch);
  // The stream has passed what count() enqueued.
  void counted();
  // Collective; waits. samples: of all ranks.
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
  std::size_t confusion_begin_ = 0, count_ = 0;  // in_top, by_class, then the confusion matrix
  Buffer counts_;                                // of the device
  Buffer sums_;                                  // of the host
  std::optional<TimedEvent> begin_, end_;        // on a GPU
  double seconds_ = 0;
};

}  // namespace lockstep
