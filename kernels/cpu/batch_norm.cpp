// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <omp.h>

#include "core/error.h"
#include "core/tensor/buffer.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/batch_norm_rows.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/onednn.h"
#include "kernels/moments.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

// A tensor as rows: for each sample and each block of channels, `positions` groups of `lanes` channels.
struct Rows {
  std::int64_t samples = 0;
  std::int64_t blocks = 0;
  std::int64_t positions = 0;
  std::int64_t lanes = 0;
  std::int64_t sample_stride = 0;  // elements
  std::int64_t block_stride = 0;

  std::int64_t physical_channels() const { return blocks * lanes; }
  std::int64_t at(std::int64_t sample, std::int64_t block) const {
    return sample * sample_stride + block * block_stride;
  }
};

Rows rows_of(const Layout& layout) {
  const dnnl::memory::desc desc = to_desc(layout);
  const dnnl::memory::dims dims = onednn::dims_of(desc);
  const dnnl::memory::dims strides = onednn::strides_of(desc);
  const auto blocks = onednn::blocks_of(desc);
  const std::int64_t channels = onednn::padded_dims_of(desc)[1];
  std::int64_t positions = 1;
  for (std::size_t i = 2; i < dims.size(); ++i) positions *= dims[i];
  Rows rows{.samples = dims[0], .positions = positions, .sample_stride = strides[0]};
  if (!blocks.empty()) {
    CHECK(blocks.size() == 1 && blocks[0].first == 1, "batch norm does not support the layout {}",
          layout.describe());
    rows.lanes = blocks[0].second;
    rows.block_stride = strides[1];
  } else if (positions == 1 || strides[1] == 1) {  // features, or channels last
    rows.lanes = channels;
    rows.block_stride = channels;
  } else {
    rows.lanes = 1;
    rows.block_stride = strides[1];
  }
  rows.blocks = channels / rows.lanes;
  const bool dense = positions == 1 || strides.back() == rows.lanes;
  CHECK(dense, "batch norm does not support the layout {}", layout.describe());
  return rows;
}

// saved: mean and 1 / deviation, one row of floats each; then, with a residual and an activation, one byte
// per element: 1 if the activation passed it. scratch: rows of floats (see Row), then sums in fp64, then, for
// several ranks, this rank's value for each channel and the gathered values of all ranks.
class CpuBatchNorm final : public BatchNormKernel {
 public:
  CpuBatchNorm(const BatchNormOptions& options, const Layout& input)
      : options_(options), rows_(rows_of(input)), channels_(input.shape()[1]) {
    layout_ = input;
    count_ = static_cast<double>(rows_.samples * rows_.positions);
    row_bytes_ = align_up(static_cast<std::size_t>(rows_.physical_channels()) * sizeof(float));
    const int threads = omp_get_max_threads();
    const bool blocks_suffice = rows_.blocks % threads == 0 || rows_.blocks >= 4 * threads;
    pieces_ = blocks_suffice ? 1 : std::min<std::int64_t>(rows_.samples, threads);
    keeps_passed_ = options.residual && options.activation != Activation::none;
    saved_bytes_ =
        2 * row_bytes_ + (keeps_passed_ ? align_up(static_cast<std::size_t>(input.physical_elements())) : 0);
    sums_offset_ = kScratchRows * row_bytes_;
    told_offset_ = sums_offset_ + 2 * static_cast<std::size_t>(pieces_) * 2 * row_bytes_;
    const auto told = static_cast<std::size_t>(options.ranks > 1 ? options.ranks + 1 : 0);
    scratch_bytes_ = told_offset_ + align_up(told * static_cast<std::size_t>(channels_) * sizeof(Moments));
  }

  void forward_training(Stream& stream, const BatchNormForward& f) override {
    if (options_.frozen) return forward_frozen(f);
    float* mean = row(f.saved, 0);
    float* inverse = row(f.saved, 1);
    float* center = row(f.scratch, kCenter);
    float* slope = row(f.scratch, kSlope);
    float* offset = row(f.scratch, kOffset);
    for (std::int64_t block = 0; block < rows_.blocks; ++block) {
      cast_span({.count = rows_.lanes,
                 .from_type = layout_.dtype(),
                 .to_type = DType::f32,
                 .from = tensor(f.x, rows_.at(0, block)),
                 .to = center + block * rows_.lanes});
    }
    const auto add_up = [&](const Piece& p) {
      const Sums sums = sums_of(f.scratch, p);
      for_rows(p, [&](std::int64_t at, std::int64_t channel) {
        add_moments(row_shape(), tensor(f.x, at), center + channel, sums.first, sums.second);
      });
    };
    const auto moments = [&](std::int64_t c) {
      const auto [sum, square] = total(f.scratch, c);
      const double shifted = sum / count_;
      const double difference = square / count_ - shifted * shifted;
      const double variance = difference < 0 ? 0 : difference;  // keeps NaN, from infinite values
      return Moments{count_, static_cast<double>(center[c]) + shifted, variance * count_};
    };
    const auto use = [&](std::int64_t c, const Moments& all) {
      const double variance = all.squares / all.count;
      mean[c] = static_cast<float>(all.mean);
      inverse[c] = static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(options_.epsilon)));
      slope[c] = c < channels_ ? f.parameters.scale[c] * inverse[c] : 0.0f;
      offset[c] = c < channels_ ? f.parameters.shift[c] : 0.0f;
      if (f.update_running && c < channels_) update_running(f.running, c, all);
    };
    in_two_passes<Moments>({stream, f.across, f.scratch}, add_up, moments, use, [&](const Piece& p) {
      normalize_piece(f, p, mean, slope, offset, passed(f.saved));
    });
  }

  void forward_evaluation(Stream&, const BatchNormForward& f) override {
    float* mean = row(f.scratch, kCenter);
    float* slope = row(f.scratch, kSlope);
    float* offset = row(f.scratch, kOffset);
    for (std::int64_t c = 0; c < rows_.physical_channels(); ++c) {
      const bool real = c < channels_;
      mean[c] = real ? f.running.mean[c] : 0.0f;
      slope[c] = real ? f.parameters.scale[c] / std::sqrt(f.running.variance[c] + options_.epsilon) : 0.0f;
      offset[c] = real ? f.parameters.shift[c] : 0.0f;
    }
    for_pieces([&](const Piece& p) { normalize_piece(f, p, mean, slope, offset, nullptr); });
  }

  void backward(Stream& stream, const BatchNormBackward& b) override {
    auto* saved = const_cast<void*>(b.saved);  // only read
    const float* mean = row(saved, 0);
    const float* inverse = row(saved, 1);
    float* slope = row(b.scratch, kSlope);
    float* offset = row(b.scratch, kOffset);
    for (std::int64_t c = 0; c < rows_.physical_channels(); ++c) {
      slope[c] = c < channels_ ? b.parameters.scale[c] * inverse[c] : 0.0f;
      offset[c] = c < channels_ ? b.parameters.shift[c] : 0.0f;
    }
    if (options_.frozen) return backward_frozen(b, mean, slope, offset);
    in_two_passes<GradientSums>(
        {stream, b.across, b.scratch}, [&](const Piece& p) { sum_gradients(b, p, mean, slope, offset); },
        [&](std::int64_t c) { return parameter_gradients(b, c, inverse); },
        [&](std::int64_t c, const GradientSums& all) { set_coefficients(b, c, inverse, all); },
        [&](const Piece& p) { write_gradients(b, p, mean, slope, offset); });
  }

 private:
  enum Row : std::size_t { kCenter, kSlope, kOffset, kFactor, kByX, kConstant, kScratchRows };

  // A range of samples of one block of channels.
  struct Piece {
    std::int64_t block = 0;
    std::int64_t index = 0;  // among the pieces of the block
    std::int64_t first = 0;  // sample
    std::int64_t last = 0;
  };
  struct Sums {
    double* first;
    double* second;
  };
  struct Across {
    Stream& stream;
    RankGather* ranks;  // null: this rank only
    void* scratch;
  };

  void forward_frozen(const BatchNormForward& f) const {
    float* mean = row(f.saved, 0);
    float* inverse = row(f.saved, 1);
    float* slope = row(f.scratch, kSlope);
    float* offset = row(f.scratch, kOffset);
    for (std::int64_t c = 0; c < rows_.physical_channels(); ++c) {
      const bool real = c < channels_;
      mean[c] = real ? f.running.mean[c] : 0.0f;
      inverse[c] = real ? 1.0f / std::sqrt(f.running.variance[c] + options_.epsilon) : 0.0f;
      slope[c] = real ? f.parameters.scale[c] * inverse[c] : 0.0f;
      offset[c] = real ? f.parameters.shift[c] : 0.0f;
    }
    for_pieces([&](const Piece& p) { normalize_piece(f, p, mean, slope, offset, passed(f.saved)); });
  }

  // The moments do not depend on x, so x's gradient is y's times the slope.
  void backward_frozen(const BatchNormBackward& b, const float* mean, const float* slope,
                       const float* offset) const {
    const auto channels = static_cast<std::size_t>(rows_.physical_channels());
    std::copy_n(slope, channels, row(b.scratch, kFactor));
    std::fill_n(row(b.scratch, kByX), channels, 0.0f);
    std::fill_n(row(b.scratch, kConstant), channels, 0.0f);
    for_pieces([&](const Piece& p) {
      if (options_.residual) sum_gradients(b, p, mean, slope, offset);  // to write the residual's gradient
      write_gradients(b, p, mean, slope, offset);
    });
  }

  BatchNormRow row_shape() const {
    return {.positions = rows_.positions, .lanes = rows_.lanes, .type = layout_.dtype()};
  }
  // The address of an element of x or of a tensor with x's layout.
  template <typename Pointer>
  Pointer tensor(Pointer data, std::int64_t at) const {
    return element_at(data, layout_.dtype(), at);
  }
  float* row(void* scratch, std::size_t index) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + index * row_bytes_);
  }
  std::uint8_t* passed(void* saved) const {
    return keeps_passed_ ? reinterpret_cast<std::uint8_t*>(row(saved, 2)) : nullptr;
  }
  double* sums(void* scratch, std::int64_t piece, int which) const {
    return reinterpret_cast<double*>(static_cast<std::byte*>(scratch) + sums_offset_ +
                                     static_cast<std::size_t>(2 * piece + which) * 2 * row_bytes_);
  }

  // This piece's sums, set to zero.
  Sums sums_of(void* scratch, const Piece& p) const {
    const std::int64_t channel = p.block * rows_.lanes;
    const Sums mine{sums(scratch, p.index, 0) + channel, sums(scratch, p.index, 1) + channel};
    std::fill_n(mine.first, rows_.lanes, 0.0);
    std::fill_n(mine.second, rows_.lanes, 0.0);
    return mine;
  }
  // The sums over all pieces, added in order.
  std::pair<double, double> total(void* scratch, std::int64_t channel) const {
    double first = 0, second = 0;
    for (std::int64_t piece = 0; piece < pieces_; ++piece) {
      first += sums(scratch, piece, 0)[channel];
      second += sums(scratch, piece, 1)[channel];
    }
    return {first, second};
  }

  // Calls body(offset of the row, its first channel) for each row of the piece.
  template <typename Body>
  void for_rows(const Piece& p, Body body) const {
    for (std::int64_t sample = p.first; sample < p.last; ++sample) {
      body(rows_.at(sample, p.block), p.block * rows_.lanes);
    }
  }

  // Calls first(piece) for all pieces of a block; then, for each of its channels, use(channel, sum of
  // value(channel) over all ranks); then second(piece). On one rank, a block that is one piece runs all three
  // in sequence while it is in the cache.
  template <typename Value, typename First, typename Local, typename Use, typename Second>
  void in_two_passes(const Across& across, First first, Local value, Use use, Second second) const {
    const auto finish = [&](std::int64_t block) {
      for (std::int64_t c = block * rows_.lanes; c < (block + 1) * rows_.lanes; ++c) use(c, value(c));
    };
    if (pieces_ == 1 && across.ranks == nullptr) {
      return deal(rows_.blocks, threads(), [&](std::int64_t block) {
        const Piece whole{.block = block, .last = rows_.samples};
        first(whole);
        finish(block);
        second(whole);
      });
    }
    for_pieces(first);
    if (across.ranks != nullptr) {
      use_of_all_ranks<Value>(across, value, use);
    } else {
      for (std::int64_t block = 0; block < rows_.blocks; ++block) finish(block);  // few blocks
    }
    for_pieces(second);
  }

  template <typename Body>
  void for_pieces(Body body) const {
    deal(rows_.blocks * pieces_, threads(), [&](std::int64_t task) {
      const std::int64_t index = task % pieces_;
      body(Piece{.block = task / pieces_,
                 .index = index,
                 .first = rows_.samples * index / pieces_,
                 .last = rows_.samples * (index + 1) / pieces_});
    });
  }

  // Padded channels use this rank's value.
  template <typename Value, typename Local, typename Use>
  void use_of_all_ranks(const Across& across, Local value, Use use) const {
    CHECK(across.ranks->ranks() == options_.ranks, "batch norm is planned for {} ranks, the gather has {}",
          options_.ranks, across.ranks->ranks());
    auto* mine = reinterpret_cast<Value*>(static_cast<std::byte*>(across.scratch) + told_offset_);
    Value* all = mine + channels_;
    for (std::int64_t c = 0; c < channels_; ++c) mine[c] = value(c);
    across.ranks->gather(across.stream, mine, all, static_cast<std::size_t>(channels_) * sizeof(Value));
    for (std::int64_t c = 0; c < channels_; ++c) use(c, sum_along_tree(all + c, options_.ranks, channels_));
    for (std::int64_t c = channels_; c < rows_.physical_channels(); ++c) use(c, value(c));
  }

  int threads() const { return threads_for(layout_.physical_elements()); }

  void update_running(const BatchNormStatistics& running, std::int64_t c, const Moments& all) const {
    const float keep = 1.0f - options_.momentum;
    const double variance = all.squares / all.count;
    const double unbiased = all.count > 1 ? variance * (all.count / (all.count - 1)) : variance;
    running.mean[c] = keep * running.mean[c] + options_.momentum * static_cast<float>(all.mean);
    running.variance[c] = keep * running.variance[c] + options_.momentum * static_cast<float>(unbiased);
  }

  void normalize_piece(const BatchNormForward& f, const Piece& p, const float* mean, const float* slope,
                       const float* offset, std::uint8_t* passed) const {
    for_rows(p, [&](std::int64_t at, std::int64_t channel) {
      normalize(row_shape(), options_.activation,
                {.x = tensor(f.x, at),
                 .residual = options_.residual ? tensor(f.residual, at) : nullptr,
                 .slope = slope + channel,
                 .mean = mean + channel,
                 .offset = offset + channel,
                 .y = tensor(f.y, at),
                 .passed = passed == nullptr ? nullptr : passed + at});
    });
  }

  void sum_gradients(const BatchNormBackward& b, const Piece& p, const float* mean, const float* slope,
                     const float* offset) const {
    const Sums mine = sums_of(b.scratch, p);
    const std::uint8_t* kept = passed(const_cast<void*>(b.saved));
    for_rows(p, [&](std::int64_t at, std::int64_t channel) {
      add_gradient_sums(row_shape(), options_.activation,
                        {.x = tensor(b.x, at),
                         .y_gradient = tensor(b.y_gradient, at),
                         .passed = kept == nullptr ? nullptr : kept + at,
                         .slope = slope + channel,
                         .mean = mean + channel,
                         .offset = offset + channel,
                         .residual_gradient = options_.residual ? tensor(b.residual_gradient, at) : nullptr,
                         .sum = mine.first,
                         .product = mine.second});
    });
  }

  // Writes this rank's gradients of a channel's parameters and returns the sums they are computed from.
  GradientSums parameter_gradients(const BatchNormBackward& b, std::int64_t c, const float* inverse) const {
    if (c >= channels_) return {};
    const auto [sum, product] = total(b.scratch, c);
    const auto scale_gradient = static_cast<float>(product * static_cast<double>(inverse[c]));
    const auto shift_gradient = static_cast<float>(sum);
    const bool adds = b.write == Write::accumulate;
    b.scale_gradient[c] = adds ? b.scale_gradient[c] + scale_gradient : scale_gradient;
    b.shift_gradient[c] = adds ? b.shift_gradient[c] + shift_gradient : shift_gradient;
    return {.sum = sum, .product = product};
  }

  void set_coefficients(const BatchNormBackward& b, std::int64_t c, const float* inverse,
                        const GradientSums& all) const {
    const bool real = c < channels_;
    const double count = count_ * options_.ranks;
    const double deviations = static_cast<double>(inverse[c]);
    const double factor = real ? static_cast<double>(b.parameters.scale[c]) * deviations : 0.0;
    row(b.scratch, kFactor)[c] = static_cast<float>(factor);
    row(b.scratch, kByX)[c] =
        real ? static_cast<float>(-deviations * deviations * all.product / count) : 0.0f;
    row(b.scratch, kConstant)[c] = real ? static_cast<float>(-all.sum / count) : 0.0f;
  }

  void write_gradients(const BatchNormBackward& b, const Piece& p, const float* mean, const float* slope,
                       const float* offset) const {
    // With a residual, the first pass has written the gradient before the activation to residual_gradient.
    const void* given = options_.residual ? b.residual_gradient : b.y_gradient;
    const Activation activation = options_.residual ? Activation::none : options_.activation;
    for_rows(p, [&](std::int64_t at, std::int64_t channel) {
      write_input_gradient(row_shape(), activation,
                           {.x = tensor(b.x, at),
                            .y_gradient = tensor(given, at),
                            .slope = slope + channel,
                            .mean = mean + channel,
                            .offset = offset + channel,
                            .factor = row(b.scratch, kFactor) + channel,
                            .by_x = row(b.scratch, kByX) + channel,
                            .constant = row(b.scratch, kConstant) + channel,
                            .x_gradient = tensor(b.x_gradient, at)});
    });
  }

  BatchNormOptions options_;
  Rows rows_;
  std::int64_t channels_;
  double count_ = 0;         // values of each channel
  std::int64_t pieces_ = 1;  // of each block of channels
  bool keeps_passed_ = false;
  std::size_t row_bytes_ = 0;    // of one float for each physical channel
  std::size_t sums_offset_ = 0;  // in scratch
  std::size_t told_offset_ = 0;  // in scratch
};

}  // namespace

std::unique_ptr<BatchNormKernel> CpuBackend::batch_norm(const BatchNormOptions& options,
                                                        const Layout& input) {
  check_batch_norm(options, input);
  return std::make_unique<CpuBatchNorm>(options, input);
}

}  // namespace lockstep
