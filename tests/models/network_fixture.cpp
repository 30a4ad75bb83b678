// SPDX-License-Identifier: Apache-2.0
#include "tests/models/network_fixture.h"

#include "core/random.h"
#include "kernels/pixel_targets.h"
#include "models/network_state.h"

namespace lockstep {

NetworkFixture::NetworkFixture(const GraphInput& input, const std::function<void(Graph&)>& build,
                               std::uint64_t seed, Recompute recompute, Precision precision,
                               MemorySharing sharing)
    : shape_(input), stream_(Device{}, StreamUse::compute) {
  Graph graph(input);
  build(graph);
  const auto channels = static_cast<std::size_t>(input.channels);
  network_ = std::make_unique<Network>(graph, NetworkOptions{.precision = precision,
                                                             .seed = seed,
                                                             .mean = std::vector<double>(channels, 0.5),
                                                             .deviation = std::vector<double>(channels, 0.25),
                                                             .recompute = recompute,
                                                             .sharing = sharing});
  gradients_.resize(network_->values().size());
  const FlatRange copies = network_->weight_copies();
  if (copies.end > 0) ranges_.push_back({.type = copies.type, .end = copies.end, .data = gradients_.data()});
  ranges_.push_back({.begin = copies.end,
                     .end = static_cast<std::int64_t>(gradients_.size()),
                     .data = gradients_.data() + copies.end});
  for (Parameter& parameter : network_->parameters()) {
    const FlatRange& range = parameter.gradient_type == DType::f32 ? ranges_.back() : ranges_.front();
    parameter.gradient = range.at(parameter.offset);
  }

  const Random random(seed, "test images");
  images_.resize(static_cast<std::size_t>(input.batch * input.height * input.width * input.channels));
  for (std::size_t i = 0; i < images_.size(); ++i)
    images_[i] = static_cast<std::uint8_t>(random.bits(i) & 255);
  if (input.masks) masks_.resize(static_cast<std::size_t>(input.batch * input.height * input.width));
  for (std::size_t i = 0; i < masks_.size(); ++i)
    masks_[i] = i % 7 == 3 ? kIgnoredPixel : static_cast<std::uint8_t>(i / 5 % 11 % input.classes);
  for (std::int64_t i = 0; i < input.batch; ++i) {
    labels_.push_back(static_cast<std::int32_t>(i % input.classes));
    weights_.push_back(1.0f);
    samples_.push_back({.epoch = 0, .index = static_cast<std::int32_t>(i)});
  }
}

std::map<std::string, std::vector<float>> NetworkFixture::plain_gradients() {
  std::map<std::string, std::vector<float>> gradients;
  Backend& backend = network_->backend();
  for (const Parameter& parameter : network_->parameters()) {
    std::vector<float> as_laid_out(static_cast<std::size_t>(parameter.layout.physical_elements()));
    backend.cast(stream_, {.count = parameter.layout.physical_elements(),
                           .from_type = parameter.gradient_type,
                           .to_type = DType::f32,
                           .from = parameter.gradient,
                           .to = as_laid_out.data()});
    std::vector<float>& values = gradients[parameter.name];
    values.resize(static_cast<std::size_t>(parameter.layout.shape().elements()));
    const StateTensor tensor{parameter.name, parameter.layout, as_laid_out.data()};
    read_plain(backend, stream_, tensor, values);
  }
  return gradients;
}

Batch NetworkFixture::input() {
  return {.images = {images_.data(), {shape_.batch, shape_.height, shape_.width, shape_.channels}, DType::u8},
          .labels = shape_.masks
                        ? Tensor{masks_.data(), {shape_.batch, shape_.height, shape_.width}, DType::u8}
                        : Tensor{labels_.data(), {shape_.batch}, DType::i32},
          .weights = {weights_.data(), {shape_.batch}, DType::f32},
          .samples = samples_};
}

double NetworkFixture::forward() {
  network_->forward(input(), {.stream = stream_});
  network_->copy_statistics(stream_);
  const LossSums sums = network_->loss(stream_);
  return static_cast<double>(sums.loss) / static_cast<double>(sums.weight);
}

double NetworkFixture::forward_backward(Write write, GradientListener* listener) {
  const Pass pass{.stream = stream_,
                  .gradient_scale = 1.0f / static_cast<float>(shape_.batch),
                  .gradients = write,
                  .listener = listener};
  network_->forward(input(), pass);
  network_->backward(pass);
  network_->copy_statistics(stream_);
  const LossSums sums = network_->loss(stream_);
  return static_cast<double>(sums.loss) / static_cast<double>(sums.weight);
}

}  // namespace lockstep
