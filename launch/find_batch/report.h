// SPDX-License-Identifier: Apache-2.0
//
// What `lockstep find-batch` says and writes.
#pragma once

#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/find_batch/batch_accuracy.h"
#include "launch/find_batch/find_batch.h"

namespace lockstep {

// "batch 64  5,120 samples/s  busy 91 %  25.1 MiB", or why it cannot be trained with.
std::string batch_line(const BatchFigure& figure);
// A line for each batch, with its accuracy where it was asked for (else none).
std::string batch_table(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies);
// Sentences: the largest that fits, the critical batch, what is recommended and what that gains.
std::vector<std::string> batch_verdict(const FoundBatch& found);
// Of the key=value that --set takes; empty: nothing changes.
std::vector<std::string> recommended_settings(const FoundBatch& found);
// An object with all of it.
std::string batch_json(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies);
// SVG of samples/s, busy and memory over the batch, one below the other, and of accuracies.
std::string batch_charts(const FoundBatch& found, const std::vector<BatchAccuracy>& accuracies,
                         const std::string& network);

}  // namespace lockstep
