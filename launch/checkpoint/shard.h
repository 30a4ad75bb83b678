// SPDX-License-Identifier: Apache-2.0
//
// State in files: a shard is a safetensors file of one rank's state, or of what all ranks share. Numbers
// that are no tensors stand in its metadata, to the bit.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/state.h"
#include "core/stream.h"
#include "launch/checkpoint/manifest.h"
#include "launch/desync_check.h"
#include "models/state_copy.h"

namespace lockstep {

// Takes state into memory that it keeps: the second time nothing is allocated. In host memory a tensor is
// copied as it lies, whatever its layout; only arrange(), which may run on another thread while training goes
// on, makes plain tensors of the copies.
class StateSnapshotTaker final : public StateVisitor {
 public:
  // takes: what all ranks share, too. hashes: the tensors of it alone, to be compared with a rank that takes
  // it, while that one copies them.
  enum class Shared { takes, hashes, ignores };
  StateSnapshotTaker(Device device, Shared shared)
      : stream_(device, StreamUse::compute), of_shared_(shared) {}

  // What `show` shows it, in place of what it has.
  void take(const std::function<void(StateVisitor&)>& show);
  // After each take(), before anything is read but hashes.
  void arrange();
  const StateCopy& shared() const { return shared_.copy; }
  const StateCopy& own() const { return own_.copy; }
  // Of what all ranks share, where it was taken or hashed. Before arrange().
  std::vector<TensorHash> shared_hashes() const;
  std::uint64_t bytes() const;

  bool writes() const override { return false; }
  void tensor(const StateTensor& tensor, StateScope scope) override;
  void value(const std::string& name, StateScope scope, StateValue value) override;

 private:
  struct Part {
    StateCopy copy;
    std::size_t shown = 0;                       // tensors
    std::vector<std::optional<Layout>> layouts;  // of those that are not plain yet, and nothing for others
  };

  // Whether it lies in host memory, every element once: then its layout, else nothing.
  const Layout* copied_as_it_lies(const StateTensor& tensor) const;
  void read(const StateTensor& tensor, std::vector<float>& values);

  Stream stream_;
  Buffer staging_;
  Shared of_shared_;
  Part shared_, own_;
  std::vector<TensorHash> hashes_;  // where they are made at once
  std::vector<float> hashed_;       // one tensor
};

// Writes the file and reads it again. Throws IoError, also where what is read is not what was written.
ShardFile write_shard(const std::filesystem::path& folder, const std::string& name, const StateCopy& state);
// Throws DataError where its size or hash is not the one expected, or it is none of these files, before
// anything is allocated for it; IoError.
StateCopy read_shard(const std::filesystem::path& folder, const ShardFile& expected);

}  // namespace lockstep
