// SPDX-License-Identifier: Apache-2.0
#include "models/state_copy.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/backend.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

template <typename Piece>
const Piece* find_piece(const std::vector<Piece>& pieces, const std::string& name, StateScope scope) {
  const auto found = std::ranges::find_if(
      pieces, [&](const Piece& piece) { return piece.scope == scope && piece.name == name; });
  return found == pieces.end() ? nullptr : &*found;
}

}  // namespace

void StateReader::tensor(const StateTensor& tensor, StateScope scope) {
  StateCopy::Tensor piece{.name = tensor.name, .scope = scope, .shape = tensor.layout.shape(), .values = {}};
  piece.values.resize(static_cast<std::size_t>(piece.shape.elements()));
  read_plain(backend_for(stream_.device()), stream_, tensor, piece.values);
  copy_.tensors.push_back(std::move(piece));
}

void StateReader::value(const std::string& name, StateScope scope, StateValue value) {
  std::visit([&](const auto* theirs) { copy_.values.push_back({name, scope, *theirs}); }, value);
}

void StateWriter::tensor(const StateTensor& tensor, StateScope scope) {
  const StateCopy::Tensor* piece = find_piece(copy_.tensors, tensor.name, scope);
  if (piece == nullptr && scope == StateScope::per_rank)
    piece = find_piece(copy_.tensors, tensor.name, StateScope::replicated);
  if (piece == nullptr) throw DataError(fmt::format("the saved state has no \"{}\"", tensor.name));
  if (piece->shape != tensor.layout.shape()) {
    throw DataError(fmt::format("the saved state has \"{}\" with the shape {}, expected {}", tensor.name,
                                to_string(piece->shape), to_string(tensor.layout.shape())));
  }
  used_.insert(piece);
  write_plain(backend_for(stream_.device()), stream_, tensor, piece->values);
}

std::vector<std::string> StateWriter::unused(StateScope scope) const {
  std::vector<std::string> names;
  for (const StateCopy::Tensor& tensor : copy_.tensors)
    if (tensor.scope == scope && !used_.contains(&tensor)) names.push_back(tensor.name);
  return names;
}

bool StateWriter::has_value(const std::string& name, StateScope scope) const {
  return find_piece(copy_.values, name, scope) != nullptr;
}

void StateWriter::value(const std::string& name, StateScope scope, StateValue value) {
  const StateCopy::Value* piece = find_piece(copy_.values, name, scope);
  if (piece == nullptr) throw DataError(fmt::format("the saved state has no \"{}\"", name));
  std::visit(
      [&]<typename T>(T* ours) {
        const T* saved = std::get_if<T>(&piece->value);
        if (saved == nullptr)
          throw DataError(fmt::format("the saved state has \"{}\" with another type", name));
        *ours = *saved;
      },
      value);
}

}  // namespace lockstep
