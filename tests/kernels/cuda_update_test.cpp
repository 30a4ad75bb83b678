// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps of the CUDA backend on a GPU, compared with the CPU backend.
#include "tests/kernels/cuda_backend_fixture.h"

namespace lockstep {
namespace {

constexpr std::int64_t kCount = 3 * kUpdateChunk + 77;
constexpr int kSteps = 3;
constexpr float kLossScale = 4;

enum class Rule { sgd, nesterov, adamw, lars };
constexpr Rule kRules[] = {Rule::sgd, Rule::nesterov, Rule::adamw, Rule::lars};

struct Case {
  Rule rule;
  DType gradient_type;
  std::int32_t finite = 1;
  bool state_stays = false;  // in the last step

  double learning_rate() const { return rule == Rule::adamw ? 0.01 : rule == Rule::lars ? 5.0 : 0.1; }
  DType copy_type() const { return gradient_type == DType::bf16 ? DType::bf16 : DType::f16; }
};

// The memory of some steps on one side.
class Steps {
 public:
  Steps(Side& side, const Case& c)
      : side_(side),
        case_(c),
        table_(side.stream.device(), kSegments),
        control_(sizeof(StepControl), side.stream.device()),
        norms_(table_.chunks().size() * sizeof(SquaredNorms), side.stream.device()),
        value_(side.lab, DType::f32, random_values(kCount, "value")),
        first_(side.lab, DType::f32, Values(kCount, 0.0f)),
        second_(side.lab, DType::f32, Values(kCount, 0.0f)),
        copy_(side.lab, c.copy_type(), Values(kCount, 5.0f)),
        trust_(side.lab, DType::f32, Values(std::size(kSegments), 0.0f)) {}

  void run() {
    for (int step = 1; step <= kSteps; ++step) {
      Values values = random_values(kCount, "gradient " + std::to_string(step));
      for (float& value : values) value *= kLossScale;
      const TypedTensor gradient(side_.lab, case_.gradient_type, values);
      const StepControl control{.learning_rate = case_.learning_rate(),
                                .step = step,
                                .loss_scale = kLossScale,
                                .finite = case_.finite};
      side_.stream.copy(control_.data(), &control, sizeof(control));
      update({.table = table_,
              .value = value_.floats(),
              .gradient = gradient.data(),
              .gradient_type = case_.gradient_type,
              .copy = copy_.data(),
              .copy_type = case_.copy_type(),
              .control = reinterpret_cast<const StepControl*>(control_.data()),
              .state_stays = case_.state_stays && step == kSteps});
      side_.stream.synchronize();
    }
  }
  std::vector<Values> results() const {
    return {value_.plain(), first_.plain(), second_.plain(), copy_.plain()};
  }

 private:
  void update(const Update& u) {
    Backend& backend = side_.backend;
    if (case_.rule == Rule::adamw) {
      return backend.update(side_.stream, u,
                            AdamWUpdate{.first_moment = first_.floats(), .second_moment = second_.floats()});
    }
    if (case_.rule == Rule::lars) {
      return backend.update(
          side_.stream, u,
          LarsUpdate{.momentum_buffer = first_.floats(),
                     .norms = {reinterpret_cast<SquaredNorms*>(norms_.data()), table_.chunks().size()},
                     .trust_ratios = {trust_.floats(), table_.segments().size()},
                     .momentum = 0.9f,
                     .trust_coefficient = 0.02f});
    }
    backend.update(
        side_.stream, u,
        SgdUpdate{
            .momentum_buffer = first_.floats(), .momentum = 0.9f, .nesterov = case_.rule == Rule::nesterov});
  }

  // One segment is not aligned to a pack; some elements belong to no segment.
  static constexpr UpdateSegment kSegments[] = {
      {.begin = 5, .count = 20, .weight_decay = 0.1f, .adaptive = true},
      {.begin = 32, .count = 2 * kUpdateChunk, .weight_decay = 0.01f, .adaptive = true},
      {.begin = 32 + 2 * kUpdateChunk, .count = 1000}};

  Side& side_;
  Case case_;
  UpdateTable table_;
  Buffer control_, norms_;
  TypedTensor value_, first_, second_, copy_, trust_;
};

class CudaUpdates : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_A_GPU(); }
};

TEST_F(CudaUpdates, EqualTheCpu) {
  Side cpu(Device{}), gpu(kGpu);
  for (const Rule rule : kRules) {
    for (const DType type : kTypes) {
      for (const bool state_stays : {false, true}) {
        const Case c{.rule = rule, .gradient_type = type, .state_stays = state_stays};
        Steps reference(cpu, c), steps(gpu, c);
        reference.run();
        steps.run();
        const std::vector<Values> expected = reference.results(), actual = steps.results();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_LT(relative_error(actual[i], widen(expected[i])), i == 3 ? 1e-3 : 1e-6)
              << "result " << i << " of rule " << static_cast<int>(rule) << ", gradients " << name_of(type)
              << (state_stays ? ", the last step keeps the state" : "");
        }
      }
    }
  }
}

TEST_F(CudaUpdates, ChangeNothingIfTheStepIsSkipped) {
  Side gpu(kGpu);
  for (const Rule rule : kRules) {
    Steps steps(gpu, {.rule = rule, .gradient_type = DType::f16, .finite = 0});
    const std::vector<Values> before = steps.results();
    steps.run();
    EXPECT_EQ(steps.results(), before);
  }
}

TEST_F(CudaUpdates, ASkippedStepIsRestoredAndMovesTheLossScale) {
  Side gpu(kGpu);
  const Values before = random_values(1001, "before"), after = random_values(1001, "after");
  const LossScaleRule rule{.growth = 2, .backoff = 0.5f, .interval = 2};
  StepControl expected{.loss_scale = 1024};
  const Buffer memory(sizeof(StepControl), kGpu);
  auto* control = reinterpret_cast<StepControl*>(memory.data());
  for (const std::int32_t finite : {1, 1, 0, 1, 1, 1}) {
    expected.finite = finite;
    gpu.stream.copy(control, &expected, sizeof(expected));
    const TypedTensor from(gpu.lab, DType::f32, before), to(gpu.lab, DType::f32, after);
    gpu.backend.restore_if_skipped(
        gpu.stream, {.control = control, .count = 1001, .from = from.floats(), .to = to.floats()});
    EXPECT_EQ(to.plain(), finite == 0 ? before : after);
    gpu.backend.finish_step(gpu.stream, rule, control);
    backend_for(Device{}).finish_step(gpu.stream, rule, &expected);
    StepControl actual;
    gpu.stream.copy(&actual, control, sizeof(actual));
    gpu.stream.synchronize();
    EXPECT_EQ(actual.step, expected.step);
    EXPECT_EQ(actual.loss_scale, expected.loss_scale);
    EXPECT_EQ(actual.good_steps, expected.good_steps);
  }
}

}  // namespace
}  // namespace lockstep
