// SPDX-License-Identifier: Apache-2.0
//
// Output of `lockstep find-batch`.
#pragma once

#include <string>
#include <vector>

#include "launch/program/find_batch/batch_accuracy.h"
#include "launch/program/find_batch/find_batch.h"

namespace lockstep {

// "batch 64  5,120 samples/s  busy 91 %  25.1 MiB", or why it cannot be trained.
std::string batch_line(const BatchFigure& figure);
// One line per batch, with its accuracy if `accuracies` is not empty.
std::string batch_table(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies);
// Sentences: the largest batch that fits, the critical batch, the recommendation and its gain.
std::vector<std::string> batch_verdict(const FoundBatch& found);
// The words "train", `config` and a --set for each override and each recommended value, which replaces an
// override of its key: load_config() of them gives the recommended values. Empty if nothing changes.
std::vector<std::string> recommended_training(const FoundBatch& found, const std::string& config,
                                              const std::vector<std::string>& overrides);
// A JSON object with all results.
std::string batch_json(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies);
// SVG charts of samples/s, busy and memory over the batch, one below the other, and of accuracies.
std::string batch_charts(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies,
                         const std::string& network);

}  // namespace lockstep
