// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/codec_speed.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/codecs/codec_exchange.h"
#include "core/random.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSampleSide = 1024;
constexpr int kTimedExchanges = 3;

// Rank 0 of several simulated ranks on a node each, which all have its data and answer at once. Sums are not
// computed.
class PretendedNodes final : public Communicator {
 public:
  PretendedNodes(Device device, int nodes)
      : Communicator("pretended", 0, nodes, std::make_shared<JobState>()),
        device_(device),
        stream_(device, StreamUse::communication) {
    std::vector<int> node_of(static_cast<std::size_t>(nodes));
    std::iota(node_of.begin(), node_of.end(), 0);
    set_nodes(node_of);
  }

  std::string_view name() const override { return "pretended"; }
  Stream& stream() override { return stream_; }
  Buffer allocate(std::size_t bytes) override { return Buffer(bytes, device_); }
  std::unique_ptr<Communicator> split(int colour, int) override {
    return colour < 0 ? nullptr : std::make_unique<PretendedNodes>(device_, 1);
  }

 private:
  void run(const Collective& collective) override {
    const std::size_t bytes = collective.count * size_of(collective.dtype);
    auto* to = static_cast<std::byte*>(collective.recv);
    if (collective.send == nullptr) return;  // in place
    if (collective.kind == CollectiveKind::all_to_all)
      return stream_.copy(to, collective.send, bytes * static_cast<std::size_t>(size()));
    const int copies = collective.kind == CollectiveKind::all_gather ? size() : 1;
    for (int copy = 0; copy < copies; ++copy, to += bytes)
      if (to != collective.send) stream_.copy(to, collective.send, bytes);
  }

  Device device_;
  Stream stream_;
};

class Sample {
 public:
  Sample(const ExchangeChoice& choice, Device device, int nodes)
      : communicator_(device, nodes),
        parameters_{{.name = "sample", .layout = Layout({kSampleSide, kSampleSide}, DType::f32)}},
        plan_(parameters_, {}, nodes),
        arena_(parameters_, plan_, communicator_),
        exchange_({.choice = choice,
                   .parameters = parameters_,
                   .plan = plan_,
                   .arena = arena_,
                   .communicator = communicator_,
                   .codecs = rules_}),
        compute_(device, StreamUse::compute),
        finite_(sizeof(std::int32_t), device) {
    const std::int32_t one = 1;
    compute_.copy(finite_.data(), &one, sizeof(one));
    values_.resize(static_cast<std::size_t>(kSampleSide * kSampleSide));
    Random(0, "sample of a codec's speed").normals(values_);
    compute_.synchronize();
  }

  double seconds() {
    Stream& stream = communicator_.stream();
    stream.copy(arena_.at(0), values_.data(), values_.size() * sizeof(float));
    stream.synchronize();
    const std::int64_t begin_ns = now_ns();
    exchange_.begin({});
    exchange_.enqueue(0);
    stream.synchronize();
    exchange_.settle(compute_, reinterpret_cast<const std::int32_t*>(finite_.data()));
    compute_.synchronize();
    return seconds_since(begin_ns);
  }

 private:
  CodecRules rules_;
  PretendedNodes communicator_;
  std::vector<Parameter> parameters_;
  BucketPlan plan_;
  GradientArena arena_;
  CodecExchange exchange_;
  Stream compute_;
  Buffer finite_;
  std::vector<float> values_;
};

}  // namespace

double codec_seconds_per_element(const ExchangeChoice& choice, Device device, int nodes) {
  Sample sample(without_warmup(choice), device, nodes);
  sample.seconds();  // touches all memory for the first time
  double least = sample.seconds();
  for (int i = 1; i < kTimedExchanges; ++i) least = std::min(least, sample.seconds());
  return least / static_cast<double>(kSampleSide * kSampleSide);
}

}  // namespace lockstep
