// SPDX-License-Identifier: Apache-2.0
#include "comm/sums/halving_schedule.h"

#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/comm/naive_tree.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// Values whose sum depends on the order.
float term_of(int node, std::size_t i) {
  return 1.0f / static_cast<float>(static_cast<std::size_t>(node) * 31 + i + 1);
}

// Simulates nodes that run their schedules on small vectors. Each node advances as far as the received
// messages allow.
class Simulation {
 public:
  Simulation(int nodes, std::size_t count) : count_(count) {
    for (int n = 0; n < nodes; ++n) {
      Node& node = nodes_.emplace_back();
      node.schedule = halving_schedule(n, nodes);
      for (std::size_t i = 0; i < count; ++i) node.data.push_back(term_of(n, i));
    }
  }

  // Returns true if all nodes have finished.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t n = 0; n < nodes_.size(); ++n) moved = advance(static_cast<int>(n)) || moved;
    }
    for (const Node& node : nodes_) {
      if (node.done < 2 * node.schedule.size()) return false;
    }
    return under_way_.empty();
  }

  const std::vector<float>& result(int node) const { return nodes_[static_cast<std::size_t>(node)].data; }
  std::size_t steps(int node) const { return nodes_[static_cast<std::size_t>(node)].schedule.size(); }
  std::size_t messages() const {
    return std::accumulate(nodes_.begin(), nodes_.end(), std::size_t{0},
                           [](std::size_t sum, const Node& node) { return sum + node.messages; });
  }
  std::size_t sent_elements(int node) const { return nodes_[static_cast<std::size_t>(node)].sent; }

 private:
  using Kind = HalvingStep::Kind;
  struct Node {
    std::vector<HalvingStep> schedule;
    std::vector<float> data;
    std::size_t done = 0;   // completed steps of both phases
    bool has_sent = false;  // in the step after them
    std::size_t messages = 0;
    std::size_t sent = 0;
  };
  struct Message {
    Stretch stretch;
    std::vector<float> data;
  };

  void send(int from, int to, const Stretch& stretch) {
    if (stretch.size() == 0) return;
    Node& node = nodes_[static_cast<std::size_t>(from)];
    ++node.messages;
    node.sent += stretch.size();
    const auto first = node.data.begin();
    under_way_[{from, to}].push_back({stretch,
                                      {first + static_cast<std::ptrdiff_t>(stretch.begin),
                                       first + static_cast<std::ptrdiff_t>(stretch.end)}});
  }

  bool has_arrived(int from, int to, const Stretch& stretch) const {
    return stretch.size() == 0 || under_way_.contains({from, to});
  }

  std::vector<float> take(int from, int to, const Stretch& stretch) {
    if (stretch.size() == 0) return {};
    auto& queue = under_way_.at({from, to});
    const Message message = queue.front();
    queue.pop_front();
    if (queue.empty()) under_way_.erase({from, to});
    EXPECT_EQ(message.stretch, stretch) << from << " to " << to;
    return message.data;
  }

  // Runs one step, if possible.
  bool advance(int n) {
    Node& node = nodes_[static_cast<std::size_t>(n)];
    const std::size_t half = node.schedule.size();
    if (node.done == 2 * half) return false;
    const bool up = node.done < half;
    const HalvingStep& step = node.schedule[up ? node.done : 2 * half - 1 - node.done];
    const Kind sends_in = up ? Kind::give : Kind::take;
    const Kind receives_in = up ? Kind::take : Kind::give;
    const auto peer = [&](int k) { return step.peer + k * step.stride; };
    const auto out = [&](int k) { return up ? sent_to(step, k, count_) : received_by(step, n, count_); };
    const auto in = [&](int k) { return up ? received_by(step, n, count_) : sent_to(step, k, count_); };
    if (!node.has_sent && step.kind != receives_in) {
      for (int k = 0; k < step.peers; ++k) send(n, peer(k), out(k));
    }
    const bool first = !std::exchange(node.has_sent, true);
    if (step.kind != sends_in) {
      for (int k = 0; k < step.peers; ++k) {
        if (!has_arrived(peer(k), n, in(k))) return first;
      }
      for (int k = 0; k < step.peers; ++k) {
        const std::vector<float> data = take(peer(k), n, in(k));
        for (std::size_t i = 0; i < data.size(); ++i) {
          float& own = node.data[in(k).begin + i];
          own = !up ? data[i] : step.lower ? own + data[i] : data[i] + own;
        }
      }
    }
    ++node.done;
    node.has_sent = false;
    return true;
  }

  std::size_t count_;
  std::vector<Node> nodes_;
  std::map<std::pair<int, int>, std::deque<Message>> under_way_;
};

void expect_tree_sums(int nodes, std::size_t count) {
  SCOPED_TRACE(testing::Message() << nodes << " nodes, " << count << " elements");
  Simulation simulation(nodes, count);
  ASSERT_TRUE(simulation.run());
  std::vector<float> expected;
  for (std::size_t i = 0; i < count; ++i) {
    expected.push_back(naive_tree<1024>(
        nodes, [&](int node) { return term_of(node, i); }, [](float a, float b) { return a + b; }));
  }
  for (int node = 0; node < nodes; ++node)
    ASSERT_EQ(std::memcmp(simulation.result(node).data(), expected.data(), count * sizeof(float)), 0) << node;
}

TEST(HalvingSchedule, SumsFollowTheTreeOnAnyNumberOfNodes) {
  for (int nodes = 1; nodes <= 33; ++nodes) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{100}, std::size_t{2048}})
      expect_tree_sums(nodes, count);
  }
  for (const int nodes : {100, 511, 513, 1000, 1024}) expect_tree_sums(nodes, 600);
}

// 20 messages for each of 1,024 nodes. For any number of nodes, fewer than two for each node and distance.
TEST(HalvingSchedule, MessageCountIsNLogNInTheNodes) {
  for (const int nodes : {2, 3, 7, 100, 1024}) {
    if (nodes > 100 && kOneOf > 1) continue;  // arithmetic only: nothing for a sanitizer
    Simulation simulation(nodes, 16 * 1024);
    ASSERT_TRUE(simulation.run());
    const auto distances = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(nodes - 1)));
    EXPECT_LE(simulation.messages(), 2 * distances * static_cast<std::size_t>(nodes)) << nodes;
    for (int node = 0; node < nodes; ++node) EXPECT_LE(simulation.steps(node), distances);
  }
}

TEST(HalvingSchedule, PowersOfTwoSendTheMinimumOfElements) {
  for (const int nodes : {2, 4, 8, 128}) {
    constexpr std::size_t kCount = 16 * 128;
    Simulation simulation(nodes, kCount);
    ASSERT_TRUE(simulation.run());
    const auto n = static_cast<std::size_t>(nodes);
    for (int node = 0; node < nodes; ++node)
      EXPECT_EQ(simulation.sent_elements(node), 2 * kCount * (n - 1) / n);
  }
}

// A fold adds at most a node's data once up and its results once down.
TEST(HalvingSchedule, AFoldAddsAtMostTheDataOnceInEachDirection) {
  constexpr std::size_t kCount = 16 * 1024;
  for (const int nodes : {3, 5, 6, 7, 100}) {
    Simulation simulation(nodes, kCount);
    ASSERT_TRUE(simulation.run());
    for (int node = 0; node < nodes; ++node) EXPECT_LE(simulation.sent_elements(node), 3 * kCount) << nodes;
  }
}

TEST(HalvingSchedule, NeedsOnePartialSumPerNodeInTreeOrder) {
  const auto fits = [](const std::vector<int>& node_of) {
    return one_term_of_each(partial_sums(node_of), node_of.back() + 1);
  };
  EXPECT_TRUE(fits({0, 1, 2, 3, 4}));
  EXPECT_TRUE(fits({0, 0, 1, 1, 2, 2}));
  EXPECT_TRUE(fits({0, 0, 1}));
  EXPECT_FALSE(fits({0, 0, 0, 1})) << "a node has two partial sums";
  EXPECT_FALSE(fits({0, 1, 0, 1}));
  EXPECT_FALSE(fits({0, 0, 1, 2})) << "(1+2) are added first, not (0+1)";
  EXPECT_FALSE(fits({0, 1, 1}));
}

}  // namespace
}  // namespace lockstep
