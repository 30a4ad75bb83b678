// SPDX-License-Identifier: Apache-2.0
//
// Training compared with files that PyTorch wrote (make_golden.py): every parameter and running statistic
// after some steps of a configuration. The bounds follow from PyTorch's own rounding errors: each file has
// the error of PyTorch's fp32 and bf16 results against fp64, by tensor.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/files/safetensors.h"
#include "core/random.h"
#include "launch/observe/run_files/training_reporters.h"
#include "launch/program/setup/training_setup.h"
#include "models/network_state.h"
#include "tests/comm/mpi_world.h"
#include "tests/data/idx_files.h"
#include "tests/peers/golden_formulas.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

// As in golden_cases.py.
constexpr std::uint64_t kSketchSeed = 3;
constexpr std::uint32_t kSketchElements = 512;

struct TrainingMode {
  const char* name;
  const char* choose;  // kernels.choose
  const char* precision;
  std::size_t column;     // of NAME.errors
  double factor;          // allowed error, as a multiple of PyTorch's error
  double floor;           // relative error that is always allowed
  double undecided;       // tensors with a larger error in PyTorch are not compared
  double first_loss;      // tolerance of the loss before any update, relative
  double loss_tolerance;  // of other losses
};
// The relative error of rounding once.
constexpr double kFp32 = 0x1p-24, kBf16 = 0x1p-8;
// The kernels, and hence the rounding, depend on the machine. An element that rounding moves across the kink
// of its ReLU changes the gradient discontinuously: in such small networks and batches by up to the share
// kKink, and later losses by up to kAfterKink.
constexpr double kKink = 1e-2, kAfterKink = 2e-3;
constexpr TrainingMode kDirect{.name = "direct",
                               .choose = "direct",
                               .precision = "fp32",
                               .column = 0,
                               .factor = 10,
                               .floor = kKink,
                               .undecided = 0.1,
                               .first_loss = 1000 * kFp32,
                               .loss_tolerance = kAfterKink};
constexpr TrainingMode kTime = [] {
  TrainingMode mode = kDirect;
  mode.name = mode.choose = "time";
  return mode;
}();
constexpr TrainingMode kInBf16{.name = "bf16",
                               .choose = "direct",
                               .precision = "bf16",
                               .column = 1,
                               .factor = 2,
                               .floor = kKink,
                               .undecided = 0.3,
                               .first_loss = 2 * kBf16,
                               .loss_tolerance = 2 * kBf16};

void PrintTo(const TrainingMode& mode, std::ostream* out) { *out << mode.name; }

struct Golden {
  explicit Golden(const std::string& name)
      : reader(source_folder() + "/tests/peers/golden/" + name + ".safetensors"),
        shape(nlohmann::json::parse(reader.metadata().at("case"))) {}

  std::vector<float> read(const std::string& name) {
    const SafetensorsEntry* entry = reader.find(name);
    if (entry == nullptr) throw DataError(fmt::format("the golden file has no {}", name));
    std::vector<float> values(static_cast<std::size_t>(entry->shape.elements()));
    reader.read(*entry, std::as_writable_bytes(std::span(values)));
    return values;
  }
  std::int64_t number(const char* key) const { return shape.at(key).get<std::int64_t>(); }

  SafetensorsReader reader;
  nlohmann::json shape;
};

void write_samples(const TemporaryFolder& folder, const Golden& golden, const std::string& split) {
  const std::int64_t batch = golden.number("batch"), size = golden.number("image"),
                     channels = golden.number("channels");
  const Bytes pixels = golden_pixels(batch, size, channels, split);
  Bytes labels;
  for (std::int64_t n = 0; n < batch; ++n) labels.push_back(static_cast<std::uint8_t>(n % kGoldenClasses));
  const auto count = static_cast<std::uint32_t>(batch), side = static_cast<std::uint32_t>(size);
  folder.write(split + (channels == 1 ? "-images-idx3-ubyte" : "-images-idx4-ubyte"),
               channels == 1 ? idx_images(count, side, side, pixels)
                             : idx_colour_images(count, {size, size, channels}, pixels));
  folder.write(split + "-labels-idx1-ubyte", idx_labels(labels));
}

// The sketch of a tensor's change by training, as in golden_cases.py.
std::vector<double> sketch_of_change(const std::string& name, const Shape& shape,
                                     const std::vector<float>& values) {
  const std::vector<float> start = start_values(name, shape);
  const auto change = [&](std::size_t i) {
    return static_cast<double>(values[i]) - static_cast<double>(start[i]);
  };
  std::vector<double> sketch(std::min<std::size_t>(values.size(), kSketchElements));
  const Random random(kSketchSeed, name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = values.size() <= kSketchElements ? 0 : random.bits(i);
    const std::size_t at = values.size() <= kSketchElements ? i : bits % kSketchElements;
    sketch[at] += (bits & kSketchElements) != 0 ? -change(i) : change(i);
  }
  return sketch;
}

double relative_error(const std::vector<double>& ours, const std::vector<float>& exact) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto wanted = static_cast<double>(exact[i]);
    difference += (ours.at(i) - wanted) * (ours.at(i) - wanted);
    size += wanted * wanted;
  }
  if (size == 0) return difference == 0 ? 0 : HUGE_VAL;  // a frozen layer
  return std::sqrt(difference / size);
}

struct Trained {
  std::vector<double> losses, test_losses;  // one for each step, which is an epoch
  std::vector<StateSnapshot::Entry> state;
};

Trained train(const Golden& golden, const TrainingMode& mode) {
  World& world = test_world();
  const TemporaryFolder folder;
  for (const char* split : {"train", "t10k"}) write_samples(folder, golden, split);
  const std::string& toml = golden.reader.metadata().at("configuration");
  folder.write("golden.toml", Bytes(toml.begin(), toml.end()));
  const std::vector<std::string> settings = {
      fmt::format("data.path=\"{}\"", folder.path().string()),
      fmt::format("train.batch={}", golden.number("batch") / world.size()),
      fmt::format("train.precision={}", mode.precision),
      fmt::format("kernels.choose={}", mode.choose),
      "kernels.cache=none",
      "world.device=cpu"};
  const Config config = load_config((folder.path() / "golden.toml").string(), settings);

  const std::unique_ptr<Communicator> communicator = world.communicator();
  TrainingSetup training(config, world, *communicator, {});
  Network& network = training.network();
  StateReader reader({});
  network.visit_state(reader);
  for (StateCopy::Tensor& tensor : reader.copy().tensors)
    tensor.values = start_values(tensor.name, tensor.shape);
  StateWriter writer({}, reader.copy());
  network.visit_state(writer);
  {
    Report report({.speaks = world.rank() == 0, .directory = folder.path(), .epochs = config.trainer.epochs});
    Trainer trainer(training.parts(), training.schedule(), {.epochs = config.trainer.epochs});
    EpochReporter reporter(trainer, training.buckets(), *communicator, report, {});
    trainer.fit({&reporter});
  }
  Trained trained{.losses = {}, .test_losses = {}, .state = StateSnapshot(network).entries()};
  std::ifstream metrics(folder.path() / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const auto epoch = nlohmann::json::parse(line);
    trained.losses.push_back(epoch.at("train_loss").get<double>());
    trained.test_losses.push_back(epoch.at("test_loss").get<double>());
  }
  return trained;
}

// trained: the losses are computed after their step, otherwise before it.
void expect_losses(const std::vector<double>& ours, const std::vector<float>& golden,
                   const TrainingMode& mode, bool trained) {
  ASSERT_FALSE(ours.empty());
  ASSERT_EQ(golden.size(), 3 * ours.size());
  for (std::size_t step = 0; step < ours.size(); ++step) {
    const auto exact = static_cast<double>(golden[step]);
    const auto peer = static_cast<double>(golden[(1 + mode.column) * ours.size() + step]);
    const double tolerance = trained || step > 0 ? mode.loss_tolerance : mode.first_loss;
    const double allowed = mode.factor * std::abs(peer - exact) + tolerance * exact;
    EXPECT_NEAR(ours[step], exact, allowed) << "step " << step + 1;
  }
}

// Prints the tensor whose error is closest to its bound.
void expect_changes(const std::vector<StateSnapshot::Entry>& state, Golden& golden,
                    const TrainingMode& mode) {
  EXPECT_EQ(2 * state.size() + 2, golden.reader.entries().size());
  std::size_t decided = 0;
  double worst = 0;
  std::string worst_name;
  for (const auto& [name, scope, shape, values] : state) {
    const auto peers_error = static_cast<double>(golden.read(name + ".errors").at(mode.column));
    if (peers_error > mode.undecided) continue;
    ++decided;
    const double error = relative_error(sketch_of_change(name, shape, values), golden.read(name));
    const double allowed = mode.factor * peers_error + mode.floor;
    EXPECT_LT(error, allowed) << name << ", PyTorch's own error is " << peers_error;
    if (error / allowed > worst) {
      worst = error / allowed;
      worst_name = fmt::format("{}: {:.1e} of {:.1e}", name, error, allowed);
    }
  }
  EXPECT_GE(2 * decided, state.size()) << "too few tensors can be compared";
  fmt::print("compared {} of {} tensors; closest to its bound: {}\n", decided, state.size(), worst_name);
}

class GoldenTest : public testing::TestWithParam<std::tuple<const char*, TrainingMode>> {};

TEST_P(GoldenTest, TrainingMatchesPyTorch) {
  on_every_rank([] {
    const auto& [name, mode] = GetParam();
    Golden golden(name);
    const Trained trained = train(golden, mode);
    if (test_world().rank() == 0) {
      expect_losses(trained.losses, golden.read("loss"), mode, false);
      expect_losses(trained.test_losses, golden.read("test_loss"), mode, true);
    }
    expect_changes(trained.state, golden, mode);
  });
}

std::string name_of_case(const testing::TestParamInfo<GoldenTest::ParamType>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param).name);
}

// Timing tries every kernel that computes a network; an optimizer has no kernels to choose from.
INSTANTIATE_TEST_SUITE_P(Networks, GoldenTest,
                         testing::Combine(testing::Values("cnn_sgd", "resnet20_sgd"),
                                          testing::Values(kDirect, kTime, kInBf16)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Optimizers, GoldenTest,
                         testing::Combine(testing::Values("cnn_nesterov", "cnn_adamw", "cnn_lars"),
                                          testing::Values(kDirect, kInBf16)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Deep, GoldenTest,
                         testing::Combine(testing::Values("mobilenet_v2_sgd"),
                                          testing::Values(kDirect, kInBf16)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Frozen, GoldenTest,
                         testing::Combine(testing::Values("resnet20_frozen"),
                                          testing::Values(kDirect, kInBf16)),
                         name_of_case);
// In bf16 too few tensors can be compared.
INSTANTIATE_TEST_SUITE_P(Bottlenecks, GoldenTest,
                         testing::Combine(testing::Values("resnet50_sgd"), testing::Values(kDirect)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(AnyRanks, GoldenTest,
                         testing::Combine(testing::Values("biased_cnn_sgd"),
                                          testing::Values(kDirect, kTime, kInBf16)),
                         name_of_case);

}  // namespace
}  // namespace lockstep
