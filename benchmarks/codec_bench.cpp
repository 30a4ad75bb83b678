// SPDX-License-Identifier: Apache-2.0
//
// Measures the processor time of codecs: encoding and decoding of all parameters of a network that a codec
// supports, bucket by bucket on a communication stream as the exchange calls them, in turns with a copy of as
// many bytes as they read and write, residuals included. Also measures all arithmetic of each codec for the
// gradients of a training step, and compares it with that step.
#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "benchmarks/on_device.h"
#include "comm/codecs/codec_plan.h"
#include "comm/exchanges/exchanges.h"
#include "core/error.h"
#include "core/timeline.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

struct Options : BenchOptions {
  int repeats = 15;
};

template <typename Work>
double seconds_on(Stream& stream, Work work) {
  const std::int64_t begin = now_ns();
  work();
  stream.synchronize();
  return seconds_since(begin);
}

// The part of each bucket that a codec supports, with one rank per node.
std::vector<PackedStretch> stretches_of(const BenchNetwork& bench, const ExchangeChoice& choice) {
  const std::span<const Parameter> parameters = bench.network->parameters();
  std::vector<bool> chosen;
  for (const Parameter& parameter : parameters)
    chosen.push_back(choice.kind->codec->takes(choice, parameter));
  std::vector<PackedStretch> stretches;
  for (const Bucket& bucket : bench.buckets->buckets()) {
    stretches.push_back(pack_stretch(bucket, parameters, chosen));
    deal_shares(stretches.back(), parameters, {.whole_parameters = choice.kind->codec->whole_parameters});
  }
  return stretches;
}

std::int64_t room_of(const std::vector<PackedStretch>& stretches) {
  std::int64_t all = 0;
  for (const PackedStretch& stretch : stretches) all += stretch.room;
  return all;
}

// ---- encoding and decoding beside a copy

// Encodes and decodes with one codec. Its memory holds the buckets one after another.
class Encoding {
 public:
  Encoding(BenchNetwork& bench, std::string_view codec)
      : name_(codec),
        stream_(bench.self->stream()),
        backend_(backend_for(stream_.device())),
        stretches_(stretches_of(bench, {.kind = &exchange_kind(codec)})) {
    const auto floats = static_cast<std::size_t>(room_of(stretches_)) * sizeof(float);
    const Device device = stream_.device();
    values_ = Buffer(floats, device);
    encoded_ = Buffer(floats, device);
    if (!is_cast()) {
      residual_ = Buffer(floats, device);
      left_ = Buffer(floats, device);
      real_ = on_device(stream_, std::vector<std::uint32_t>(floats / sizeof(float) / 32, ~std::uint32_t{0}));
    }
    std::int64_t place = 0;
    for (const PackedStretch& stretch : stretches_) {
      for (const PackedRun& run : stretch.runs) gather(bench, run, place + run.place);
      place += stretch.room;
    }
    stream_.synchronize();
  }

  const std::vector<PackedStretch>& stretches() const { return stretches_; }
  // Bytes read and written per element.
  double encode_bytes() const {
    return is_cast() ? 6 : 12 + (code() == BlockCode::sign ? kRealBytes : 0) + record_bytes_of_element();
  }
  double decode_bytes() const { return is_cast() ? 6 : 4 + kRealBytes + record_bytes_of_element(); }

  // Encode or decode elements [place, place + count).
  void encode(std::int64_t place, std::int64_t count) {
    if (is_cast()) return cast(place, count, DType::f32, values_, encoded_);
    backend_.encode_blocks(stream_, {.code = code(),
                                     .blocks = count / kBlockElements,
                                     .values = at(values_, place),
                                     .residual = at(residual_, place),
                                     .left = at(left_, place),
                                     .real = real_at(place),
                                     .records = records_at(place)});
  }
  void decode(std::int64_t place, std::int64_t count) {
    if (is_cast()) return cast(place, count, half(), encoded_, values_);
    backend_.sum_blocks(stream_, {.code = code(),
                                  .blocks = count / kBlockElements,
                                  .records = records_at(place),
                                  .real = real_at(place),
                                  .values = at(values_, place)});
  }

 private:
  static constexpr double kRealBytes = 1.0 / 8;  // encoding int8 does not read the bits of padding

  bool is_cast() const { return name_ == "fp16" || name_ == "bf16"; }
  DType half() const { return name_ == "fp16" ? DType::f16 : DType::bf16; }
  BlockCode code() const { return name_ == "int8" ? BlockCode::int8 : BlockCode::sign; }
  double record_bytes_of_element() const {
    return static_cast<double>(record_bytes(code())) / static_cast<double>(kBlockElements);
  }
  static float* at(const Buffer& memory, std::int64_t place) {
    return reinterpret_cast<float*>(memory.data()) + place;
  }
  std::byte* records_at(std::int64_t place) const {
    return encoded_.data() + place / kBlockElements * record_bytes(code());
  }
  const std::uint32_t* real_at(std::int64_t place) const {
    return reinterpret_cast<const std::uint32_t*>(real_.data()) + place / 32;
  }
  // Encoded halves begin where the bucket's fp32 values would begin, so that buckets share no cache line.
  void cast(std::int64_t place, std::int64_t count, DType from, const Buffer& source, const Buffer& to) {
    backend_.cast(stream_, {.count = count,
                            .from_type = from,
                            .to_type = from == DType::f32 ? half() : DType::f32,
                            .from = at(source, place),
                            .to = at(to, place)});
  }
  void gather(BenchNetwork& bench, const PackedRun& run, std::int64_t place) {
    const auto* gradients = static_cast<const float*>(bench.buckets->gradients().front().data);
    stream_.copy(at(values_, place), gradients + run.range.begin,
                 static_cast<std::size_t>(run.range.count()) * sizeof(float));
  }

  std::string_view name_;
  Stream& stream_;
  Backend& backend_;
  std::vector<PackedStretch> stretches_;
  Buffer values_, encoded_, residual_, left_, real_;
};

struct Speed {
  Spread gigabytes_per_second;
  Spread copied;   // GB/s of the copy
  Spread of_copy;  // ratios to the copy's speed, by turns
  double milliseconds = 0;
};

// Times body(place, count) for each bucket, in turns with copies that read half of the bytes and write half.
template <typename Body>
Speed measure(Stream& stream, const std::vector<PackedStretch>& stretches, double bytes, int repeats,
              Body body) {
  const std::int64_t all = room_of(stretches);
  const double total = bytes * static_cast<double>(all);
  const auto half = [bytes](std::int64_t elements) {
    return static_cast<std::size_t>(bytes / 2 * static_cast<double>(elements));
  };
  const Buffer from(half(all), stream.device()), to(half(all), stream.device());
  const auto for_each_bucket = [&](auto each) {
    std::int64_t place = 0;
    for (const PackedStretch& stretch : stretches) {
      if (stretch.room > 0) each(place, stretch.room);
      place += stretch.room;
    }
  };
  const auto run = [&] { for_each_bucket(body); };
  const auto copy = [&] {
    for_each_bucket([&](std::int64_t place, std::int64_t count) {
      stream.copy(to.data() + half(place), from.data() + half(place), half(count));
    });
  };
  std::vector<double> speeds, copies, ratios;
  for (int turn = -2; turn < repeats; ++turn) {  // two to warm up
    const bool copy_first = turn % 2 != 0;
    double copied = copy_first ? seconds_on(stream, copy) : 0;
    const double seconds = seconds_on(stream, run);
    if (!copy_first) copied = seconds_on(stream, copy);
    if (turn < 0) continue;
    speeds.push_back(total * 1e-9 / seconds);
    copies.push_back(total * 1e-9 / copied);
    ratios.push_back(copied / seconds);
  }
  return {.gigabytes_per_second = spread_of(speeds),
          .copied = spread_of(copies),
          .of_copy = spread_of(ratios),
          .milliseconds = total * 1e-6 / median(speeds)};
}

nlohmann::json json_of(const Spread& spread) { return {spread.least, spread.most}; }

nlohmann::json encodings(BenchNetwork& bench, int repeats) {
  nlohmann::json rows = nlohmann::json::array();
  fmt::print("{:<14} {:>8} {:>10} {:>10} {:>10} {:>8}   {}\n", "", "bytes", "ms", "GB/s", "copy GB/s",
             "of copy", "from .. to");
  for (const char* codec : {"fp16", "bf16", "int8", "sign"}) {
    Encoding encoding(bench, codec);
    for (const bool encodes : {true, false}) {
      const double bytes = encodes ? encoding.encode_bytes() : encoding.decode_bytes();
      const Speed speed = measure(bench.self->stream(), encoding.stretches(), bytes, repeats,
                                  [&](std::int64_t place, std::int64_t count) {
                                    encodes ? encoding.encode(place, count) : encoding.decode(place, count);
                                  });
      const char* what = encodes ? "encode" : "decode";
      fmt::print("{:<14} {:>8.2f} {:>10.2f} {:>10.1f} {:>10.1f} {:>6.0f} %   {:.0f} % .. {:.0f} %\n",
                 fmt::format("{} {}", codec, what), bytes, speed.milliseconds,
                 speed.gigabytes_per_second.typical, speed.copied.typical, 100 * speed.of_copy.typical,
                 100 * speed.of_copy.least, 100 * speed.of_copy.most);
      rows.push_back({{"codec", codec},
                      {"function", what},
                      {"bytes_per_element", bytes},
                      {"milliseconds", speed.milliseconds},
                      {"gigabytes_per_second", speed.gigabytes_per_second.typical},
                      {"copy_gigabytes_per_second", speed.copied.typical},
                      {"of_copy", speed.of_copy.typical},
                      {"of_copy_spread", json_of(speed.of_copy)}});
    }
  }
  return rows;
}

// ---- all arithmetic of a codec beside a step

// A codec of one rank, which exchanges with itself: all of its arithmetic, and no communication.
class Alone {
 public:
  Alone(BenchNetwork& bench, const ExchangeChoice& choice)
      : bench_(bench), choice_(choice), stretches_(stretches_of(bench, choice)) {
    values_ = bench.self->allocate(static_cast<std::size_t>(room_of(stretches_)) * sizeof(float));
    std::int64_t place = 0;
    for (const PackedStretch& stretch : stretches_) {
      shares_.push_back({.values = at(place),
                         .count = stretch.room,
                         .pieces = pieces_of(stretch, bench.network->parameters(), {0, stretch.packed})});
      place += stretch.room;
    }
    codec_ = choice_.kind->codec->make({.choice = choice_,
                                        .parameters = bench.network->parameters(),
                                        .shares = shares_,
                                        .across = *bench.self,
                                        .momentum = {.momentum = 0.9}});
  }

  // Milliseconds of one exchange, without copying the gradients.
  double milliseconds() {
    Stream& stream = bench_.self->stream();
    const auto* gradients = static_cast<const float*>(bench_.buckets->gradients().front().data);
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      for (const PackedRun& run : stretches_[i].runs) {
        stream.copy(static_cast<float*>(shares_[i].values) + run.place, gradients + run.range.begin,
                    static_cast<std::size_t>(run.range.count()) * sizeof(float));
      }
    }
    stream.synchronize();
    const double seconds = seconds_on(stream, [&] {
      for (std::size_t i = 0; i < shares_.size(); ++i) {
        if (shares_[i].count > 0) codec_->exchange(i, {});
      }
    });
    const std::int32_t finite = 1;
    Stream compute(stream.device(), StreamUse::compute);
    codec_->settle(compute, &finite);
    return 1e3 * seconds;
  }

 private:
  void* at(std::int64_t place) const { return reinterpret_cast<float*>(values_.data()) + place; }

  BenchNetwork& bench_;
  ExchangeChoice choice_;
  std::vector<PackedStretch> stretches_;
  Buffer values_;
  std::vector<CodecShare> shares_;
  std::unique_ptr<Codec> codec_;
};

double step_milliseconds(BenchNetwork& bench, const FixedBatch& batch) {
  Stream stream(Device{}, StreamUse::compute);
  const Pass pass{.stream = stream, .gradient_scale = 1.0f / static_cast<float>(bench.network->batch())};
  return 1e3 * seconds_on(stream, [&] {
           bench.network->forward(batch.input(), pass);
           bench.network->loss(stream);
           bench.network->backward(pass);
           bench.optimizer->step(stream, kBenchRate);
         });
}

nlohmann::json steps(BenchNetwork& bench, const FixedBatch& batch, int repeats) {
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Alone>> codecs;
  for (const ExchangeKind* kind : exchange_kinds()) {
    if (kind->codec == nullptr) continue;
    const ExchangeChoice choice = without_warmup({.kind = kind});
    names.emplace_back(kind->name);
    codecs.push_back(std::make_unique<Alone>(bench, choice));
  }
  std::vector<std::vector<double>> times(codecs.size()), shares(codecs.size());
  std::vector<double> all_steps;
  for (int turn = -2; turn < repeats; ++turn) {  // two to warm up
    const double step = step_milliseconds(bench, batch);
    for (std::size_t i = 0; i < codecs.size(); ++i) {
      const double time = codecs[i]->milliseconds();
      if (turn < 0) continue;
      times[i].push_back(time);
      shares[i].push_back(time / step);
    }
    if (turn >= 0) all_steps.push_back(step);
  }
  nlohmann::json rows = nlohmann::json::array();
  fmt::print("\na step: {:.1f} ms\n{:<14} {:>10} {:>10}   {}\n", median(all_steps), "", "ms", "of a step",
             "from .. to");
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    const Spread share = spread_of(shares[i]);
    fmt::print("{:<14} {:>10.2f} {:>8.1f} %   {:.1f} % .. {:.1f} %\n", names[i], median(times[i]),
               100 * share.typical, 100 * share.least, 100 * share.most);
    rows.push_back({{"codec", names[i]},
                    {"milliseconds", median(times[i])},
                    {"of_step", share.typical},
                    {"of_step_spread", json_of(share)}});
  }
  return {{"step_milliseconds", median(all_steps)}, {"codecs", rows}};
}

int run(const Options& o) {
  if (o.device != "cpu" || o.precision != "fp32")
    throw ConfigError(
        fmt::format("--device {} --precision {}: codec_bench needs --device cpu and --precision fp32",
                    o.device, o.precision));
  BenchNetwork bench(o);
  const RandomImages images(o, o.batch);
  const FixedBatch batch(images, o.batch, o.where());
  step_milliseconds(bench, batch);  // computes gradients
  const nlohmann::json rows = encodings(bench, o.repeats);
  const nlohmann::json step = steps(bench, batch, o.repeats);
  write_json(o.json, {{"benchmark", "codec"},
                      {"machine", describe_machine()},
                      {"options", o.to_json()},
                      {"repeats", o.repeats},
                      {"encodings", rows},
                      {"step", step}});
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  options.batch = 32;
  options.threads = 1;
  lockstep::BenchProgram program(
      "codec_bench",
      "Measures the processor time of codecs. First it times encoding and decoding of a network's gradients "
      "by one thread, in turns with a copy of as many bytes. bytes: read and written per element, residuals "
      "included. of copy: share of the copy's speed, the median and the least to the most of all turns. "
      "Then it times all arithmetic of each codec for the gradients of a training step, and its share of "
      "that step.");
  options.add_flags(program);
  program.positive("--repeats", options.repeats, "number of turns");
  return program.run(argc, argv, [&] { return lockstep::run(options); });
}
