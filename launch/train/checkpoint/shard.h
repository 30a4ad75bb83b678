// SPDX-License-Identifier: Apache-2.0
//
// State in files: a shard is a safetensors file with one rank's state, or with the state that all ranks
// share. Its metadata has the scalar values, bit for bit.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/state.h"
#include "core/stream.h"
#include "launch/train/checkpoint/manifest.h"
#include "launch/train/watch/desync_check.h"
#include "models/state_copy.h"

namespace lockstep {

// Copies state into host memory that it reuses: later snapshots of the same state allocate nothing. A tensor
// without padding is copied in its own layout. arrange(), which may run on another thread during training,
// converts the copies to the plain layout.
class StateSnapshotTaker final : public StateVisitor {
 public:
  // takes: copies the shared state. hashes: only hashes its tensors, while another rank copies them, for
  // comparison with that rank. ignores: neither.
  enum class Shared { takes, hashes, ignores };
  StateSnapshotTaker(Device device, Shared shared)
      : stream_(device, StreamUse::compute), shared_mode_(shared) {}

  // Replaces the snapshot with the state that `show` visits.
  void take(const std::function<void(StateVisitor&)>& show);
  // Call after each take(), before reading anything but hashes.
  void arrange();
  const StateCopy& shared() const { return shared_.copy; }
  const StateCopy& own() const { return own_.copy; }
  // Hashes of the shared tensors, if they are taken or hashed. Call it before arrange().
  std::vector<TensorHash> shared_hashes() const;
  std::uint64_t bytes() const;

  bool writes() const override { return false; }
  void tensor(const StateTensor& tensor, StateScope scope) override;
  void value(const std::string& name, StateScope scope, StateValue value) override;

 private:
  struct Part {
    StateCopy copy;
    std::size_t visited = 0;                     // tensors visited
    std::vector<std::optional<Layout>> layouts;  // of tensors that are not plain yet
  };

  void read(const StateTensor& tensor, std::vector<float>& values);

  Stream stream_;
  Shared shared_mode_;
  Part shared_, own_;
  std::vector<TensorHash> hashes_;  // where they are computed in take()
  std::vector<float> hashed_;       // values of one tensor
};

// Writes the file and verifies its hash by reading it again. Throws IoError, also if the hash differs.
ShardFile write_shard(const std::filesystem::path& folder, const std::string& name, const StateCopy& state);
// Throws DataError if the size or hash is not the expected one, before any tensor is allocated, or if the
// file is not a shard. Throws IoError if it cannot be read.
StateCopy read_shard(const std::filesystem::path& folder, const ShardFile& expected);

}  // namespace lockstep
