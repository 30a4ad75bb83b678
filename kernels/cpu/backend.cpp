// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include <omp.h>

#include "core/error.h"
#include "kernels/backend_factories.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/kernels.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

std::string isa_name() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
      return "SSE4.1";
    case dnnl::cpu_isa::avx:
      return "AVX";
    case dnnl::cpu_isa::avx2:
    case dnnl::cpu_isa::avx2_vnni:
      return "AVX2";
    case dnnl::cpu_isa::avx512_core:
    case dnnl::cpu_isa::avx512_core_vnni:
      return "AVX-512";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "AVX-512 with bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "AVX-512 with AMX";
    default:
      return "an instruction set without a name here";
  }
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "an unnamed processor";
}

// On a compute stream at once, on the caller's thread and its team; else in the stream's order, by its worker
// and as many threads as the stream has.
template <typename Work>
void in_order(Stream& stream, Work work) {
  if (stream.use() == StreamUse::compute) return work();
  stream.enqueue([work, threads = stream.threads()] {
    omp_set_num_threads(threads);  // of this worker alone
    work();
  });
}

class CpuBackend final : public Backend {
 public:
  void set_threads(int threads) override { omp_set_num_threads(threads); }
  void set_block_threads(int) override {}
  std::string describe() const override {
    const dnnl_version_t& version = *dnnl_version();
    return fmt::format("oneDNN {}.{}.{} with {}", version.major, version.minor, version.patch, isa_name());
  }

  Peak measure_peak() override { return cpu_measure_peak(); }
  std::string identity() const override {
    return fmt::format("{} on {}, {} threads", describe(), processor_name(), omp_get_max_threads());
  }

  std::unique_ptr<AffineKernel> convolution(const ConvolutionShape& shape, const Layout& input,
                                            KernelChoices& choices) override {
    return make_cpu_convolution(shape, input, choices);
  }
  std::unique_ptr<AffineKernel> linear(const LinearShape& shape, const Layout& input,
                                       KernelChoices& choices) override {
    return make_cpu_linear(shape, input, choices);
  }
  std::unique_ptr<BatchNormKernel> batch_norm(const BatchNormOptions& options, const Layout& input) override {
    return make_cpu_batch_norm(options, input);
  }
  std::unique_ptr<PoolingKernel> pooling(const PoolingOptions& options, const Layout& input) override {
    return make_cpu_pooling(options, input);
  }
  std::unique_ptr<ReorderKernel> reorder(const Layout& from, const Layout& to) override {
    return make_cpu_reorder(from, to);
  }
  std::unique_ptr<ImageInputKernel> image_input(const ImageInput& input) override {
    return make_cpu_image_input(input);
  }

  void activation_forward(Stream& stream, const ActivationForward& arguments) override {
    in_order(stream, [arguments] { cpu_activation_forward(arguments); });
  }
  void activation_backward(Stream& stream, const ActivationBackward& arguments) override {
    in_order(stream, [arguments] { cpu_activation_backward(arguments); });
  }
  void add(Stream& stream, const Addition& arguments) override {
    in_order(stream, [arguments] { cpu_add(arguments); });
  }
  void scale(Stream& stream, const Scaling& arguments) override {
    in_order(stream, [arguments] { cpu_scale(arguments); });
  }
  void cast(Stream& stream, const Cast& arguments) override {
    in_order(stream, [arguments] { cpu_cast(arguments); });
  }
  void all_finite(Stream& stream, const FiniteCheck& arguments) override {
    in_order(stream, [arguments] { cpu_all_finite(arguments); });
  }

  void dropout(Stream&, const DropoutArguments& arguments) override { cpu_dropout(arguments); }
  std::size_t loss_scratch_bytes(std::int64_t) override { return 0; }
  void softmax_cross_entropy(Stream&, const SoftmaxCrossEntropy& arguments) override {
    cpu_softmax_cross_entropy(arguments);
  }

  void update(Stream& stream, const Update& update, const UpdateRule& rule) override {
    in_order(stream, [update, rule] { cpu_update(update, rule); });
  }
  void restore_if_skipped(Stream& stream, const Restore& arguments) override {
    in_order(stream, [arguments] { cpu_restore_if_skipped(arguments); });
  }
  void finish_step(Stream& stream, const LossScaleRule& rule, StepControl* control) override {
    in_order(stream, [rule, control] { lockstep::finish_step(rule, *control); });
  }
};

}  // namespace

Backend& detail::cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace lockstep
