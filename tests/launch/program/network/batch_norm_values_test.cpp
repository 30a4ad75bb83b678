// SPDX-License-Identifier: Apache-2.0
#include "launch/program/network/batch_norm_values.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// Two batch norm layers: over size x size pixels, and over one pixel.
Graph two_norms(std::int64_t batch, std::int64_t size, bool frozen = false) {
  Graph graph({.batch = batch, .height = size, .width = size, .channels = 3, .classes = 2});
  Value x = graph.convolution(graph.input(), {.channels = 8, .kernel = 3, .padding = 1}, "conv1");
  x = graph.batch_norm(x, {}, "bn1");
  x = graph.pooling(x, {.kind = PoolingKind::average, .global = true});
  x = graph.batch_norm(x, {}, "bn2");
  graph.classify(graph.linear(x, {.features = 2}, "fc"));
  if (frozen) graph.freeze("bn2");
  return graph;
}

TEST(BatchNormValues, OneValuePerChannelIsRefused) {
  const std::string message =
      message_of<ConfigError>([] { require_batch_norm_values(two_norms(1, 4), {.micro_batches = 2}); });
  expect_parts(message, {"bn2", "[1, 8, 1, 1]", "train.batch", "model.sync_batch_norm", "data.resize"});
  EXPECT_EQ(message.find("bn1"), std::string::npos) << message;
  expect_parts(message_of<ConfigError>([] { require_batch_norm_values(two_norms(1, 1), {}); }), {"bn1"});
}

TEST(BatchNormValues, SeveralValuesPerChannelAreAllowed) {
  EXPECT_NO_THROW(require_batch_norm_values(two_norms(2, 4), {}));
  EXPECT_NO_THROW(require_batch_norm_values(two_norms(1, 4), {.synchronized_ranks = 2}));
  EXPECT_NO_THROW(require_batch_norm_values(two_norms(1, 4, true), {}));
}

// A short batch is divided evenly; a micro-batch may get one sample or none.
TEST(BatchNormValues, AShortLastBatchWithOneSampleForAMicroBatchIsRefused) {
  const Graph graph = two_norms(8, 4);
  for (const std::int64_t tail : {1, 2, 3, 4, 7}) {
    const auto check = [&] { require_batch_norm_values(graph, {.tail = tail, .micro_batches = 4}); };
    expect_parts(message_of<ConfigError>(check),
                 {"data.tail", std::to_string(tail) + " sample", "4 micro-batches", "bn2"});
  }
  for (const std::int64_t tail : {0, 8, 9, 31})
    EXPECT_NO_THROW(require_batch_norm_values(graph, {.tail = tail, .micro_batches = 4})) << tail;
  EXPECT_NO_THROW(require_batch_norm_values(graph, {.tail = 1, .micro_batches = 4, .synchronized_ranks = 4}));
}

}  // namespace
}  // namespace lockstep
