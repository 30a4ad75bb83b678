// SPDX-License-Identifier: Apache-2.0
//
// State dicts of torchvision's networks, as safetensors saves them, can be loaded without a conversion, and
// the logits match torchvision's (make_logits.py).
#include <algorithm>
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
#include "models/network_state.h"
#include "models/networks/networks.h"
#include "tests/peers/golden_formulas.h"
#include "tests/source_folder.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using StateDict = nlohmann::ordered_json;  // a list of [name, type, shape]

struct TorchvisionNetwork {
  const char* name;
  const char* prefix;  // prefix of a wrapper
};
void PrintTo(const TorchvisionNetwork& network, std::ostream* out) { *out << network.name; }

Shape shape_of(const StateDict& entry) { return Shape(entry.at(2).get<std::vector<std::int64_t>>()); }

// num_batches_tracked is I64, which only other programs write.
void write_state_dict(const std::filesystem::path& path, const StateDict& state, const std::string& prefix) {
  StateDict header;
  std::int64_t end = 0;
  for (const StateDict& entry : state) {
    const std::int64_t begin = end;
    end += shape_of(entry).elements() * (entry.at(1) == "F32" ? 4 : 8);
    header[prefix + entry.at(0).get<std::string>()] = {
        {"dtype", entry.at(1)}, {"shape", entry.at(2)}, {"data_offsets", {begin, end}}};
  }
  const std::string text = header.dump();
  const std::uint64_t bytes = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  file << text;
  for (const StateDict& entry : state) {
    const Shape shape = shape_of(entry);
    if (entry.at(1) != "F32") {
      const std::int64_t batches = 7;
      file.write(reinterpret_cast<const char*>(&batches), sizeof(batches));
      continue;
    }
    const std::vector<float> values = start_values(entry.at(0), shape);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
}

class TorchvisionTest : public testing::TestWithParam<TorchvisionNetwork> {};

TEST_P(TorchvisionTest, LogitsMatchTorchvision) {
  SafetensorsReader golden(source_folder() + "/tests/peers/golden/torchvision_logits.safetensors");
  const auto& [name, prefix] = GetParam();
  const auto shape = nlohmann::json::parse(golden.metadata().at("case"));
  const std::int64_t batch = shape.at("batch"), size = shape.at("image"), channels = shape.at("channels");
  const TemporaryFolder folder("torchvision");
  const auto file = folder.path() / name;
  write_state_dict(file, StateDict::parse(golden.metadata().at(name)), prefix);

  Graph graph(
      {.batch = batch, .height = size, .width = size, .channels = channels, .classes = kGoldenClasses});
  build_network(graph, {.name = name});
  const auto count = static_cast<std::size_t>(channels);
  Network network(graph, {.mean = std::vector<double>(count, kGoldenMean),
                          .deviation = std::vector<double>(count, kGoldenDeviation)});
  load_state(network, file);
  std::vector<std::uint8_t> pixels = golden_pixels(batch, size, channels, "t10k");
  std::vector<std::int32_t> labels(static_cast<std::size_t>(batch));
  std::vector<float> weights(static_cast<std::size_t>(batch), 1.0f);
  Stream stream({}, StreamUse::compute);
  network.forward({.images = {pixels.data(), {batch, size, size, channels}, DType::u8},
                   .labels = {labels.data(), {batch}, DType::i32},
                   .weights = {weights.data(), {batch}, DType::f32},
                   .samples = {}},
                  {.stream = stream, .mode = Mode::evaluation});
  const std::span<const float> ours = network.logits().as<float>();

  std::vector<float> theirs(ours.size()), error(1);
  golden.read(*golden.find(name), std::as_writable_bytes(std::span(theirs)));
  golden.read(*golden.find(name + std::string(".error")), std::as_writable_bytes(std::span(error)));
  const float allowed = std::max(1e-5f, 10 * error[0]);  // kernels of other processors round differently
  float largest = 0;
  for (const float logit : theirs) largest = std::max(largest, std::abs(logit));
  for (std::size_t i = 0; i < theirs.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], allowed * largest) << i;
}

std::string name_of_network(const testing::TestParamInfo<TorchvisionNetwork>& network) {
  return network.param.name;
}

INSTANTIATE_TEST_SUITE_P(Networks, TorchvisionTest,
                         testing::Values(TorchvisionNetwork{"resnet18", ""},
                                         TorchvisionNetwork{"resnet34", "module."},
                                         TorchvisionNetwork{"resnet50", "model."},
                                         TorchvisionNetwork{"mobilenet_v2", "backbone."}),
                         name_of_network);

}  // namespace
}  // namespace lockstep
