// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/call.h"

#include <array>

#include <fmt/format.h>

namespace lockstep::emulator {
namespace {

struct Type {
  const char* name;
  std::size_t bytes;
};

constexpr std::array<Type, 10> kTypes = {{{"ncclInt8", 1},
                                          {"ncclUint8", 1},
                                          {"ncclInt32", 4},
                                          {"ncclUint32", 4},
                                          {"ncclInt64", 8},
                                          {"ncclUint64", 8},
                                          {"ncclFloat16", 2},
                                          {"ncclFloat32", 4},
                                          {"ncclFloat64", 8},
                                          {"ncclBfloat16", 2}}};
constexpr std::array<const char*, 5> kOps = {"ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg"};

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "ncclAllReduce";
    case Kind::reduce_scatter:
      return "ncclReduceScatter";
    case Kind::all_gather:
      return "ncclAllGather";
    case Kind::broadcast:
      return "ncclBroadcast";
    case Kind::reduce:
      return "ncclReduce";
    case Kind::transfers:
      return "a group of ncclSend and ncclRecv";
  }
  return "?";
}

std::size_t size_of_type(int type) {
  return type >= 0 && type < static_cast<int>(kTypes.size()) ? kTypes[static_cast<std::size_t>(type)].bytes
                                                             : 0;
}

const char* name_of_type(int type) { return kTypes.at(static_cast<std::size_t>(type)).name; }

std::size_t Transfer::bytes() const { return count * size_of_type(type); }

std::string describe(const Call& call) {
  if (call.kind == Kind::transfers) {
    return name_of(call.kind) + (call.captured ? ", captured" : fmt::format(", call {}", call.number));
  }
  std::string text =
      fmt::format("{} of {} elements ({}", name_of(call.kind), call.count, name_of_type(call.type));
  if (call.op >= 0) text += fmt::format(", {}", kOps.at(static_cast<std::size_t>(call.op)));
  if (call.root >= 0) text += fmt::format(", root {}", call.root);
  text += call.captured ? "), captured" : fmt::format("), call {}", call.number);
  if (call.symmetric())
    return text + fmt::format(", in windows at {} and {}", call.send_place, call.recv_place);
  return text + (call.registered ? ", registered" : ", not registered");
}

bool is_reduction(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce_scatter || kind == Kind::reduce;
}
bool has_root(Kind kind) { return kind == Kind::broadcast || kind == Kind::reduce; }

bool contributes(const Call& call, int rank) { return call.kind != Kind::broadcast || rank == call.root; }
bool receives(const Call& call, int rank) { return call.kind != Kind::reduce || rank == call.root; }

Operation make_operation(const Call& call, const void* send, void* recv, int rank, int ranks) {
  const std::size_t bytes = call.count * size_of_type(call.type);
  const auto all = static_cast<std::size_t>(ranks);
  Operation operation{.call = call};
  if (contributes(call, rank)) {
    operation.send = static_cast<const std::byte*>(send);
    operation.send_bytes = call.kind == Kind::reduce_scatter ? bytes * all : bytes;
  }
  if (receives(call, rank)) {
    operation.recv = static_cast<std::byte*>(recv);
    operation.recv_bytes = call.kind == Kind::all_gather ? bytes * all : bytes;
  }
  return operation;
}

bool well_placed(const Operation& operation, int rank) {
  const auto send = reinterpret_cast<std::uintptr_t>(operation.send);
  const auto recv = reinterpret_cast<std::uintptr_t>(operation.recv);
  if (operation.send_bytes == 0 || operation.recv_bytes == 0) return true;
  if (send + operation.send_bytes <= recv || recv + operation.recv_bytes <= send) return true;
  const auto me = static_cast<std::size_t>(rank);
  switch (operation.call.kind) {
    case Kind::reduce_scatter:
      return recv == send + me * operation.recv_bytes;
    case Kind::all_gather:
      return send == recv + me * operation.send_bytes;
    default:
      return recv == send;
  }
}

}  // namespace lockstep::emulator
