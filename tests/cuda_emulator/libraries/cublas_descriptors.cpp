// SPDX-License-Identifier: Apache-2.0
//
// The emulated cuBLASLt's matmul descriptors, matrix layouts, preferences and algorithms: reads and writes
// their attributes, which have the documented sizes.
#include <cstring>

#include <cublasLt.h>

#include "tests/cuda_emulator/libraries/cublas_algorithms.h"
#include "tests/cuda_emulator/libraries/cublas_answer.h"

namespace lockstep::emulator::cublas {
namespace {

// The memory of one attribute.
struct Field {
  void* data = nullptr;
  std::size_t bytes = 0;
};
template <typename T>
Field field(T& member) {
  return {&member, sizeof(member)};
}

Field field_of(cublasLtMatmulDescOpaque_t& d, cublasLtMatmulDescAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return field(d.compute_type);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return field(d.scale_type);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return field(d.pointer_mode);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return field(d.transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return field(d.transpose_b);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return field(d.transpose_c);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return field(d.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return field(d.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return field(d.bias_batch_stride);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return field(d.bias_type);
    default:
      throw Refusal(CUBLAS_STATUS_NOT_SUPPORTED, "not emulated: this attribute of a matmul descriptor");
  }
}

Field field_of(cublasLtMatrixLayoutOpaque_t& l, cublasLtMatrixLayoutAttribute_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return field(l.type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return field(l.order);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return field(l.rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return field(l.columns);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return field(l.leading_dimension);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return field(l.batch_count);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return field(l.batch_stride);
    default:
      throw Refusal(CUBLAS_STATUS_NOT_SUPPORTED, "not emulated: this attribute of a matrix layout");
  }
}

Field field_of(cublasLtMatmulPreferenceOpaque_t& p, cublasLtMatmulPreferenceAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return field(p.search_mode);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return field(p.most_workspace_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return field(p.reduction_schemes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return field(p.alignment_a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return field(p.alignment_b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return field(p.alignment_c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return field(p.alignment_d);
    default:
      throw Refusal(CUBLAS_STATUS_NOT_SUPPORTED, "not emulated: this attribute of a preference");
  }
}

template <typename Object, typename Attribute>
void set(Object* object, Attribute attribute, const void* value, std::size_t bytes) {
  require(object != nullptr && value != nullptr, "a pointer is null");
  const Field field = field_of(*object, attribute);
  require(bytes == field.bytes, "wrong size for this attribute");
  std::memcpy(field.data, value, bytes);
}

void get(const Field& field, void* value, std::size_t bytes, std::size_t* written) {
  if (bytes == 0) {
    require(written != nullptr, "the pointer for the written size is null");
    *written = field.bytes;
    return;
  }
  require(value != nullptr && bytes == field.bytes, "wrong size for this attribute");
  std::memcpy(value, field.data, bytes);
  if (written != nullptr) *written = bytes;
}

template <typename Object>
void destroy(Object* object) {
  require(object != nullptr, "a pointer is null");
  delete object;
}

}  // namespace
}  // namespace lockstep::emulator::cublas

using namespace lockstep::emulator::cublas;

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  return answer(__func__, [&] {
    require(descriptor != nullptr, "a pointer is null");
    *descriptor = new cublasLtMatmulDescOpaque_t{.compute_type = compute_type, .scale_type = scale_type};
  });
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
  return answer(__func__, [&] { destroy(descriptor); });
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  return answer(__func__, [&] { set(descriptor, attribute, value, bytes); });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading_dimension) {
  return answer(__func__, [&] {
    require(layout != nullptr, "a pointer is null");
    *layout = new cublasLtMatrixLayoutOpaque_t{
        .type = type, .rows = rows, .columns = columns, .leading_dimension = leading_dimension};
  });
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return answer(__func__, [&] { destroy(layout); });
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  return answer(__func__, [&] { set(layout, attribute, value, bytes); });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return answer(__func__, [&] {
    require(preference != nullptr, "a pointer is null");
    *preference = new cublasLtMatmulPreferenceOpaque_t;
  });
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return answer(__func__, [&] { destroy(preference); });
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  return answer(__func__, [&] { set(preference, attribute, value, bytes); });
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes, std::size_t* written) {
  return answer(__func__, [&] {
    require(algorithm != nullptr, "a pointer is null");
    const std::optional<Proposal> proposal = Proposal::unpack(*algorithm);
    require(proposal.has_value(), "the algorithm was not filled in by a heuristic");
    Algorithm of = proposal->algorithm;
    std::uint32_t none = 0;
    std::uint16_t none_short = 0;
    const auto found = [&]() -> Field {
      switch (attribute) {
        case CUBLASLT_ALGO_CONFIG_ID:
          return field(of.id);
        case CUBLASLT_ALGO_CONFIG_TILE_ID:
          return field(of.tile);
        case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
          return field(of.split);
        case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
          return field(of.reduction);
        case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
        case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
          return field(none);
        case CUBLASLT_ALGO_CONFIG_STAGES_ID:
          return field(of.stages);
        case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
          return field(none_short);
        case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
          return field(of.cluster);
      }
      throw Refusal(CUBLAS_STATUS_INVALID_VALUE, "an algorithm has no such attribute");
    };
    get(found(), value, bytes, written);
  });
}
