// SPDX-License-Identifier: Apache-2.0
//
// NCCL between ranks that share this machine's devices: each rank counts as a separate node.
#include <stdexcept>

#include <gtest/gtest.h>

#include "comm/nccl/configuration.h"
#include "comm/nccl/sharing.h"
#include "core/error.h"
#include "tests/comm/contract.h"
#include "tests/comm/mpi_world.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaStatus status = cuda_status();
    if (status.devices.empty()) GTEST_SKIP() << "no CUDA device: " << status.message;
    device_.index = test_world().local_rank() % static_cast<int>(status.devices.size());
  }

  Device device_{.kind = DeviceKind::cuda, .index = 0};
};

struct Pair {
  std::unique_ptr<Communicator> host = test_world().communicator();
  std::unique_ptr<Communicator> nccl;

  explicit Pair(Device device, DeviceCommunicatorOptions options = {}) {
    options.share_device = true;
    nccl = test_world().communicator(device, *host, options);
  }
};

class NcclContract : public NcclTest, public testing::WithParamInterface<ContractCase> {};

TEST_P(NcclContract, Holds) {
  on_every_rank([this] {
    const Pair ranks(device_);
    EXPECT_EQ(ranks.nccl->name(), "nccl");
    GetParam().check({*ranks.nccl, Sums::in_any_order});
  });
}

INSTANTIATE_TEST_SUITE_P(Nccl, NcclContract,
                         testing::ValuesIn(communicator_contract().begin(), communicator_contract().end()),
                         [](const auto& suite) { return std::string(suite.param.name); });

using Nccl = NcclTest;

TEST_F(Nccl, AllocatedMemoryOfEveryKindIsZeroed) {
  on_every_rank([this] {
    for (const RegisteredMemory kind :
         {RegisteredMemory::window, RegisteredMemory::registered, RegisteredMemory::plain}) {
      const Pair ranks(device_, {.memory = kind});
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5'000'001}}) {
        const Buffer memory = ranks.nccl->allocate(bytes);
        EXPECT_EQ(memory.bytes(), bytes);
        EXPECT_EQ(memory.device(), device_);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment, 0u);
        std::vector<std::byte> seen(bytes, std::byte{1});
        ranks.nccl->stream().copy(seen.data(), memory.data(), bytes);
        ranks.nccl->stream().synchronize();
        EXPECT_EQ(std::count(seen.begin(), seen.end(), std::byte{0}), static_cast<std::ptrdiff_t>(bytes));
      }
    }
  });
}

// A stream may write to the memory as soon as it has it: zeroing on another stream must be complete by then.
TEST_F(Nccl, AllocatedMemoryIsZeroedBeforeAnyStreamUsesIt) {
  on_every_rank([this] {
    const Pair ranks(device_);
    Stream other(device_, StreamUse::compute);
    for (int i = 0; i < 20; ++i) {
      std::int32_t number = 7;
      const Buffer memory = ranks.nccl->allocate(sizeof(number));
      other.copy(memory.data(), &number, sizeof(number));
      other.synchronize();
      ranks.nccl->stream().synchronize();
      other.copy(&number, memory.data(), sizeof(number));
      other.synchronize();
      EXPECT_EQ(number, 7);
    }
  });
}

TEST_F(Nccl, FreedMemoryIsNotUsedByAnyStream) {
  on_every_rank([this] {
    const Pair ranks(device_, {.memory = RegisteredMemory::registered});
    Stream other(device_, StreamUse::compute);
    for (int i = 0; i < 20; ++i) {
      const std::int32_t number = 7;
      std::int32_t seen = 0;
      const Buffer kept(sizeof(number), device_);
      {
        const Buffer memory = ranks.nccl->allocate(sizeof(number));
        other.copy(memory.data(), &number, sizeof(number));
        other.synchronize();
        other.copy(kept.data(), memory.data(), sizeof(number));
      }
      other.copy(&seen, kept.data(), sizeof(seen));
      other.synchronize();
      EXPECT_EQ(seen, number);
    }
  });
}

TEST_F(Nccl, CompletedSumsSurviveTheEndOfTheCommunicator) {
  on_every_rank([this] {
    for (int i = 0; i < 3; ++i) {
      const Buffer memory(sizeof(std::int32_t), device_);
      Pair ranks(device_);
      std::int32_t number = 1 << ranks.nccl->rank();
      ranks.nccl->stream().copy(memory.data(), &number, sizeof(number));
      ranks.nccl->all_reduce(memory.data(), 1, DType::i32, ReduceOp::sum);
      const int size = ranks.nccl->size();
      Event summed(device_);
      ranks.nccl->stream().record(summed);
      summed.synchronize();
      ranks.nccl.reset();
      EXPECT_FALSE(ranks.host->job()->abandoned());
      Stream other(device_, StreamUse::compute);
      other.copy(&number, memory.data(), sizeof(number));
      other.synchronize();
      EXPECT_EQ(number, (1 << size) - 1);
    }
  });
}

TEST_F(Nccl, AnErrorOfItsStreamIsLoggedWhenTheCommunicatorEnds) {
  on_every_rank([this] {
    Pair ranks(device_);
    ranks.nccl->stream().enqueue([] { throw std::runtime_error("a task failed"); });
    testing::internal::CaptureStderr();
    ranks.nccl.reset();
    expect_parts(testing::internal::GetCapturedStderr(), {"warning", "nccl", "a task failed"});
  });
}

TEST_F(Nccl, FewerThreadBlocksGiveTheSameSums) {
  on_every_rank([this] {
    const Pair ranks(device_, {.max_ctas = 1});
    const Buffer memory = ranks.nccl->allocate(4);
    std::int32_t number = 1 << ranks.nccl->rank();
    ranks.nccl->stream().copy(memory.data(), &number, 4);
    ranks.nccl->all_reduce(memory.data(), 1, DType::i32, ReduceOp::sum);
    ranks.nccl->stream().copy(&number, memory.data(), 4);
    ranks.nccl->stream().synchronize();
    EXPECT_EQ(number, (1 << ranks.nccl->size()) - 1);
  });
}

// Rank 0 is in a collective that its peers never enter.
TEST_F(Nccl, AnExceptionDoesNotWaitForPeers) {
  on_every_rank([this] {
    const std::vector<int> nodes(static_cast<std::size_t>(test_world().size()), 0);
    const std::unique_ptr<Communicator> host = communicator_of_its_own_job(nodes);
    const bool alone = test_world().size() == 1;
    try {
      const std::unique_ptr<Communicator> nccl =
          test_world().communicator(device_, *host, {.share_device = true});
      const Buffer memory = nccl->allocate(1 << 20);
      nccl->all_reduce(memory.data(), 1 << 18, DType::f32, ReduceOp::sum);  // connects all ranks
      nccl->stream().synchronize();
      host->barrier();
      host->stream().synchronize();
      if (nccl->rank() == 0) nccl->all_reduce(memory.data(), 1 << 18, DType::f32, ReduceOp::sum);
      throw std::runtime_error("trouble");
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "trouble");
    }
    if (!alone) {
      EXPECT_EQ(host->job()->abandoned(), host->rank() == 0) << host->job()->reason();
    }
    const std::unique_ptr<Communicator> all = test_world().communicator();
    all->barrier();  // every rank got here
    all->stream().synchronize();
  });
}

std::string value_of(const std::vector<EnvironmentVariable>& variables, const std::string& name) {
  for (const EnvironmentVariable& variable : variables) {
    if (variable.name == name) return variable.value;
  }
  return "";
}

TEST(NcclSharing, EveryRankHasItsOwnHostId) {
  const auto first = sharing_environment({.rank = 0});
  const auto second = sharing_environment({.rank = 1});
  EXPECT_NE(value_of(first, "NCCL_HOSTID"), value_of(second, "NCCL_HOSTID"));
  EXPECT_EQ(value_of(first, "NCCL_NET"), "Socket");
  EXPECT_EQ(value_of(first, "NCCL_SOCKET_IFNAME"), "lo");
  EXPECT_EQ(value_of(sharing_environment({.rank = 0, .nodes = 2}), "NCCL_SOCKET_IFNAME"), "")
      << "other nodes are not reached through lo";
}

TEST(NcclSharing, KeepsARequestedNumberOfThreadBlocks) {
  EXPECT_EQ(value_of(sharing_environment({.rank = 0}), "NCCL_MAX_CTAS"), "2");
  EXPECT_EQ(value_of(sharing_environment({.rank = 0, .nodes = 1, .max_ctas = 8}), "NCCL_MAX_CTAS"), "");
}

TEST(NcclConfiguration, LeavesUnsetOptionsToNccl) {
  const ncclConfig_t config = nccl_configuration({}, "name", NCCL_VERSION_CODE);
  EXPECT_EQ(config.blocking, 1);
  EXPECT_STREQ(config.commName, "name");
  for (const int each : {config.minCTAs, config.maxCTAs, config.nvlsCTAs, config.cgaClusterSize,
                         config.CTAPolicy, config.trafficClass})
    EXPECT_EQ(each, NCCL_CONFIG_UNDEF_INT);
}

TEST(NcclConfiguration, HasTheOptionsThatAreSet) {
  const ncclConfig_t config = nccl_configuration({.max_ctas = 8,
                                                  .nvls_ctas = 4,
                                                  .cga_cluster_size = 0,
                                                  .cta_policy = CtaPolicy::zero,
                                                  .traffic_class = 104},
                                                 "name", NCCL_VERSION_CODE);
  EXPECT_EQ(config.minCTAs, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(config.maxCTAs, 8);
  EXPECT_EQ(config.nvlsCTAs, 4);
  EXPECT_EQ(config.cgaClusterSize, 0);
  const bool has_zero = NCCL_VERSION_CODE >= 22803;  // earlier headers have no name for it
  EXPECT_EQ(config.CTAPolicy, has_zero ? 2 : NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(config.trafficClass, 104);
  EXPECT_EQ(nccl_configuration({.cta_policy = CtaPolicy::efficiency}, "name", NCCL_VERSION_CODE).CTAPolicy,
            NCCL_CTA_POLICY_EFFICIENCY);
  EXPECT_EQ(nccl_configuration({.min_ctas = 16}, "name", NCCL_VERSION_CODE).maxCTAs, 64)
      << "NCCL refuses minCTAs alone";
}

// The versions are those of NCCL's tags.
TEST(NcclConfiguration, SaysWhatAnOlderLibraryLacks) {
  const DeviceCommunicatorOptions options = {.nvls_ctas = 4,
                                             .ctas_beside_compute = 2,
                                             .cta_policy = CtaPolicy::efficiency,
                                             .traffic_class = 3,
                                             .kernel_times = true};
  const std::vector<std::string> missing = missing_in_nccl(options, 22403);
  ASSERT_EQ(missing.size(), 6u);
  expect_parts(missing[0], {"comm.traffic_class", "2.26.2", "the library", "2.24.3"});
  expect_parts(missing[1], {"comm.nvls_ctas", "2.27.3"});
  expect_parts(missing[2], {"comm.cta_policy"});
  expect_parts(missing[3], {"comm.ctas_beside_compute", "2.28.3"});
  expect_parts(missing[4], {"comm.kernel_times", "2.28.3"});
  expect_parts(missing[5], {"comm.gradient_memory", "registered"});
  EXPECT_EQ(missing_in_nccl(options, 22602).size(), 5u);
  EXPECT_EQ(missing_in_nccl(options, 22703).size(), 2u);
  EXPECT_TRUE(missing_in_nccl(options, 22803).empty());
  const DeviceCommunicatorOptions zero = {.cta_policy = CtaPolicy::zero};
  ASSERT_EQ(missing_in_nccl(zero, 22703).size(), 1u);
  expect_parts(missing_in_nccl(zero, 22703)[0], {"comm.cta_policy", "zero", "2.28.3"});
  EXPECT_EQ(nccl_configuration(zero, "name", 22703).CTAPolicy, NCCL_CONFIG_UNDEF_INT) << "NCCL refuses it";
  const ncclConfig_t config = nccl_configuration(options, "name", 22403);
  for (const int each : {config.nvlsCTAs, config.CTAPolicy, config.trafficClass})
    EXPECT_EQ(each, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(config.commName, nullptr);
  EXPECT_EQ(usable_memory(RegisteredMemory::window, 22403), RegisteredMemory::registered);
  EXPECT_EQ(usable_memory(RegisteredMemory::window, 22703), RegisteredMemory::window);
  EXPECT_EQ(usable_memory(RegisteredMemory::plain, 22403), RegisteredMemory::plain);
}

TEST(NcclVersion, HasThreeParts) {
  const std::string version = nccl_version();
  EXPECT_EQ(version.substr(0, 2), "2.") << version;
  EXPECT_EQ(std::count(version.begin(), version.end(), '.'), 2) << version;
}

}  // namespace
}  // namespace lockstep
