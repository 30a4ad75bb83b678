// SPDX-License-Identifier: Apache-2.0
//
// The candidates that are constructed for a choice, and choices at several numbers of threads.
#include "kernels/cpu/product_choice.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include "kernels/backend.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/processor_wait.h"
#include "tests/kernels/kept_threads.h"

namespace lockstep {
namespace {

// Empty products with two names. oneDNN may lack the second.
struct Offer {
  bool has_second = true;
  int first_made = 0;
  int second_made = 0;

  void plan(KernelChoices& choices) {
    const std::vector<ProductCandidate> candidates = {{.name = "first",
                                                       .make =
                                                           [this] {
                                                             ++first_made;
                                                             return CpuProduct();
                                                           }},
                                                      {.name = "second", .make = [this] {
                                                         ++second_made;
                                                         if (!has_second)
                                                           throw dnnl::error(dnnl_unimplemented, "none");
                                                         return CpuProduct();
                                                       }}};
    choose_product(choices, "key", candidates);
  }
};

TEST(ProductChoice, CreatesOnlyTheKeptCandidate) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("key", {.candidate = "second"});
  Offer offer;
  offer.plan(choices);
  EXPECT_EQ(offer.first_made, 0) << "a second start must not create a candidate that it does not use";
  EXPECT_EQ(offer.second_made, 1);
}

TEST(ProductChoice, CreatesEachCandidateOnceForAContest) {
  KernelChoices choices(ChooseBy::time);
  Offer offer;
  offer.plan(choices);
  EXPECT_EQ(offer.first_made, 1);
  EXPECT_EQ(offer.second_made, 1);
}

TEST(ProductChoice, ACandidateThatTheLibraryLacksIsNotChosen) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("key", {.candidate = "second"});  // by a rank on another processor
  Offer offer{.has_second = false};
  offer.plan(choices);
  EXPECT_EQ(choices.kept().at("key").candidate, "first");
  EXPECT_EQ(choices.kept().at("key").microseconds, 0) << "a single candidate must not be timed";
}

// A small inner product with a transposed result: oneDNN has nothing but its reference implementation for it.
CpuProduct reference_product() {
  using dnnl::memory;
  const memory::desc square({8, 8}, memory::data_type::f32, memory::format_tag::ab);
  const memory::desc transposed({8, 8}, memory::data_type::f32, memory::format_tag::ba);
  const auto pd = onednn::describe<dnnl::inner_product_forward>(onednn_engine(), scratchpad_attributes(),
                                                                dnnl::prop_kind::forward_training, square,
                                                                square, memory::desc(), transposed);
  return CpuProduct({.kept = {.x = square, .w = square, .y = transposed}},
                    {.name = "reference",
                     .primitive = dnnl::inner_product_forward(pd),
                     .wanted = {.x = pd.src_desc(), .w = pd.weights_desc(), .y = pd.dst_desc()},
                     .scratch = pd.scratchpad_desc()});
}

TEST(ProductChoice, TimesNoReferenceKernelExceptTheFirstCandidate) {
  const ProductCandidate fast{.name = "fast", .make = [] { return CpuProduct(); }};
  const ProductCandidate reference{.name = "reference", .make = reference_product};
  const auto chosen = [](const std::vector<ProductCandidate>& candidates) {
    KernelChoices choices(ChooseBy::time);
    choose_product(choices, "key", candidates);
    return choices.kept().at("key");
  };
  EXPECT_EQ(chosen({fast, reference}).microseconds, 0) << "a single candidate must not be timed";
  EXPECT_EQ(chosen({reference, reference}).candidate, "reference");
  EXPECT_GT(chosen({reference, fast}).first_microseconds, 0);
  KernelChoices named(ChooseBy::name, "reference");
  const std::vector<ProductCandidate> both = {fast, reference};
  EXPECT_TRUE(choose_product(named, "key", both).is_reference());
}

// A rank with a different number of threads uses rank 0's choices, because ranks must round alike.
TEST(ProductChoice, DoesNotDependOnTheNumberOfThreads) {
  Backend& backend = backend_for(Device{});
  const ConvolutionShape shape{.batch = 4,
                               .in_channels = 16,
                               .in_height = 8,
                               .in_width = 8,
                               .out_channels = 16,
                               .kernel = 3,
                               .padding = 1};
  const Layout input({4, 16, 8, 8}, DType::f32);
  const KeptThreads kept;
  backend.set_threads(2);
  const std::string with_two = backend.identity();
  KernelChoices choices(ChooseBy::time);
  backend.convolution(shape, input, choices);
  const std::size_t held = choices.progress().held;
  backend.set_threads(1);
  backend.convolution(shape, input, choices);
  EXPECT_EQ(choices.progress().held, held) << "another number of threads must not cause a new contest";
  EXPECT_NE(backend.identity(), with_two) << "the identity must contain the number of threads";
}

TEST(ProcessorWait, ReportsTheShareOfTimeThatThreadsWait) {
  if (!std::ifstream("/proc/self/schedstat")) GTEST_SKIP() << "the system has no /proc/self/schedstat";
  const ProcessorWait wait;
  std::atomic<bool> enough = false;
  std::vector<std::jthread> busy;
  // Four threads share one core, so that other programs keep theirs.
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  for (int i = 0; i < 4; ++i)
    busy.emplace_back([&] {
      ASSERT_EQ(pthread_setaffinity_np(pthread_self(), sizeof(here), &here), 0);
      while (!enough) continue;
    });
  // At least 100 ms, and longer where other programs delay the start of these threads.
  const auto start = std::chrono::steady_clock::now();
  const auto since = [&] { return std::chrono::steady_clock::now() - start; };
  double fraction = 0;
  while (since() < std::chrono::milliseconds(100) ||
         (fraction <= 0.3 && since() < std::chrono::seconds(20))) {
    std::this_thread::yield();
    fraction = wait.fraction();
  }
  enough = true;
  EXPECT_GT(fraction, 0.3) << "only one of four threads can have the processor";
}

}  // namespace
}  // namespace lockstep
