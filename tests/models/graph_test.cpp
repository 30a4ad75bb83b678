// SPDX-License-Identifier: Apache-2.0
#include "models/graph.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "models/network.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

const GraphInput kGraphInput{.batch = 4, .height = 28, .width = 28, .channels = 1, .classes = 10};

TEST(Graph, ComputesShapes) {
  Graph graph(kGraphInput);
  Value x = graph.convolution(graph.input(), {.channels = 8, .kernel = 3, .stride = 2, .padding = 1}, "a");
  EXPECT_EQ(graph.shape(x), (Shape{4, 8, 14, 14}));
  x = graph.convolution(x, {.channels = 16, .kernel = 3, .dilation = 2}, "b");
  EXPECT_EQ(graph.shape(x), (Shape{4, 16, 10, 10}));
  x = graph.pooling(x, {.kernel = 3, .stride = 2, .padding = 1});
  EXPECT_EQ(graph.shape(x), (Shape{4, 16, 5, 5}));
  EXPECT_EQ(graph.shape(graph.pooling(x, {.global = true})), (Shape{4, 16, 1, 1}));
  EXPECT_EQ(graph.shape(graph.linear(x, {.features = 7}, "c")), (Shape{4, 7}));
}

TEST(Graph, RefusesMismatchedShapesAndNamesTheLayer) {
  Graph graph(kGraphInput);
  const Value x = graph.convolution(graph.input(), {.channels = 6}, "first");
  expect_parts(message_of<ConfigError>([&] { graph.convolution(x, {.channels = 6}, "first"); }), {"first"});
  expect_parts(
      message_of<ConfigError>([&] { graph.convolution(x, {.channels = 8, .groups = 4}, "grouped"); }),
      {"grouped"});
  expect_parts(message_of<ConfigError>([&] { graph.convolution(x, {.channels = 8, .kernel = 31}, "wide"); }),
               {"wide", "kernel 31", to_string(graph.shape(x))});
  const Value flat = graph.linear(x, {.features = 9}, "flat");
  expect_parts(message_of<ConfigError>([&] { graph.pooling(flat, {}); }),
               {"pooling", "[N, C, H, W]", "[4, 9]"});
  expect_parts(message_of<ConfigError>([&] { graph.pooling(x, {.padding = 2}); }), {"padding 2", "half"});
  expect_parts(message_of<ConfigError>([&] { graph.batch_norm(x, {.ranks = 2}, "norm"); }),
               {"norm", "batch_norm_ranks"});
  expect_parts(message_of<ConfigError>([&] { graph.layer_norm(x, {.epsilon = 0}, "flat norm"); }),
               {"flat norm", "epsilon"});
  expect_parts(message_of<ConfigError>([&] { graph.add(x, flat); }),
               {"add", to_string(graph.shape(x)), "[4, 9]"});
  expect_parts(message_of<ConfigError>([&] { graph.classify(flat); }), {"classify", "[4, 9]", "[4, 10]"});
}

// With equal names two dropout layers would have equal masks, and two convolutions equal initial values.
TEST(Graph, LayersWithParametersOrMasksNeedAName) {
  Graph graph(kGraphInput);
  expect_parts(message_of<ConfigError>([&] { graph.convolution(graph.input(), {.channels = 6}, ""); }),
               {"convolution", "name"});
  expect_parts(message_of<ConfigError>([&] { graph.dropout(graph.input(), 0.5, ""); }), {"dropout", "name"});
  EXPECT_NO_THROW(graph.relu(graph.relu(graph.input())));
}

TEST(Graph, SizesPast64BitsAreRefused) {
  Graph graph(kGraphInput);
  Value x = graph.input();
  for (int i = 0; i < 2; ++i) x = graph.upsample(x, 1 << 8);
  expect_parts(message_of<ConfigError>([&] { graph.upsample(x, std::int64_t{1} << 40); }),
               {"upsample", to_string(graph.shape(x))});
  expect_parts(message_of<ConfigError>([&] { graph.upsample(x, 1 << 10); }), {"upsampling", "2^56"});
  const Value wide = graph.convolution(graph.input(), {.channels = 1 << 20}, "wide");
  const ConvolutionOptions wider{.channels = 1 << 20, .kernel = 4095, .padding = 4096};
  expect_parts(message_of<ConfigError>([&] { graph.convolution(wide, wider, "wider"); }),
               {"wider", "1048576, 1048576, 4095"});
  expect_parts(message_of<ConfigError>([&] { graph.linear(x, {.features = 1 << 20}, "flat"); }),
               {"flat", "1048576"});
}

TEST(Graph, DropoutOfZeroIsNoLayerAndOfOneIsRefused) {
  Graph graph(kGraphInput);
  const Value x = graph.linear(graph.input(), {.features = 7}, "a");
  EXPECT_EQ(graph.dropout(x, 0, "none").id, x.id);
  EXPECT_EQ(graph.shape(graph.dropout(x, 0.5, "half")), (Shape{4, 7}));
  for (const double probability : {-0.5, 0.99999999, 1.0, 2.0}) {
    expect_parts(message_of<ConfigError>([&] { graph.dropout(x, probability, "bad"); }), {"bad"});
  }
}

TEST(Graph, OnlyTheLastValueOfABlockIsVisibleOutside) {
  Graph graph(kGraphInput);
  Value inside, last;
  {
    const BlockScope scope(graph);
    inside = graph.convolution(graph.input(), {.channels = 6}, "inside");
    EXPECT_NO_THROW(last = graph.add(graph.relu(inside), inside));
  }
  expect_parts(message_of<ConfigError>([&] { graph.convolution(inside, {.channels = 6}, "outside"); }),
               {"outside"});
  expect_parts(message_of<ConfigError>([&] { graph.add(last, inside); }), {"add"});
  const BlockScope next(graph);
  expect_parts(message_of<ConfigError>([&] { graph.relu(inside); }), {"activation"});
  EXPECT_NO_THROW(graph.convolution(graph.relu(last), {.channels = 6}, "next"));
}

TEST(Graph, BlocksAreNeitherNestedNorEndedTwice) {
  Graph graph(kGraphInput);
  EXPECT_THROW(graph.end_block(), Error);
  const BlockScope scope(graph);
  EXPECT_THROW(graph.begin_block(), Error);
}

TEST(Graph, LogitsInsideABlockAreRefused) {
  Graph graph(kGraphInput);
  Value logits;
  {
    const BlockScope scope(graph);
    logits = graph.linear(graph.input(), {.features = 10}, "logits");
    graph.linear(logits, {.features = 10}, "last");
  }
  expect_parts(message_of<ConfigError>([&] { graph.classify(logits); }), {"classify", "block"});
}

TEST(Graph, ALayerWhoseResultNothingUsesIsRefusedInPlanning) {
  Graph with_head(kGraphInput), with_end(kGraphInput);
  const Value x = with_head.convolution(with_head.input(), {.channels = 8}, "conv");
  with_head.convolution(x, {.channels = 4}, "aux");
  with_head.classify(with_head.linear(x, {.features = 10}, "fc"));
  expect_parts(message_of<ConfigError>([&] { Network::planned_memory(with_head, {}); }), {"layer aux"});

  const Value logits = with_end.linear(with_end.input(), {.features = 10}, "fc");
  with_end.classify(logits);
  EXPECT_NO_THROW(Network::planned_memory(with_end, {}));
  with_end.relu(logits);
  expect_parts(message_of<ConfigError>([&] { Network::planned_memory(with_end, {}); }), {"layer activation"});
}

}  // namespace
}  // namespace lockstep
