// What one instruction set does for the lane, as plain functions over plain data. The drivers (forward.cc, backward.cc)
// know the plan and threads and nothing of vectors; a kernel knows vectors and nothing of plans.
//
// A kernel may not allocate, lock, throw, read globals or the environment, or keep state.
//
// Everything is laid out around a panel: `panel` queries side by side, one vector lane each. Scores, probabilities and
// outputs of a panel are stored transposed, [key][query] and [dim][query], so that a softmax over keys never crosses
// lanes and every matrix product has the one form C[a][j] (+)= sum over k of A(a, k) * B(k, j) with vectors along j.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/contract.h"
#include "tessera/tensor.h"

namespace tessera::lanes::cpu {

// C[a][j] = or += the sum over k of A(a, k) * B(k, j), j < width. k runs over `num_segments` stretches of `num_k`.
// A is stored [a][k]; for `multiply_columns` [k][a]. Strides count elements.
//
// Kernels with 16-bit operands read both kinds of A stored [a][k], and B with the values of two rows in each 32-bit
// word, which is what the strides of B count: `b_stride` steps over a pair of rows. How rows lie within a group of rows
// (of A: `a_group`; of B: two or four) is the kernel's own affair; whoever passes pointers keeps to whole groups.
struct Product {
  const void* a = nullptr;
  int64_t a_stride = 0;
  int64_t a_segment = 0;
  const void* b = nullptr;
  int64_t b_stride = 0;
  int64_t b_segment = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t num_a = 0;  // a multiple of key_step
  int64_t num_k = 0;  // a multiple of dim_step, key_step or panel
  int64_t num_segments = 1;
  int64_t width = 0;  // a multiple of panel
  bool accumulate = false;
};

// Rows of a strided tensor, and where their packed form goes.
struct PackRows {
  ElementType type = ElementType::kF32;
  const std::byte* from = nullptr;
  int64_t from_stride = 0;  // elements from token to token
  int64_t num_rows = 0;
  int64_t dim = 0;
  int64_t padded_dim = 0;         // zeros from dim on
  int64_t padded_rows = 0;        // zeros from num_rows on
  const uint8_t* dead = nullptr;  // rows to write as zeros without reading them; may be null
  uint8_t* not_finite = nullptr;  // set to 1 for rows that hold NaN or infinity, which then become zeros; null: copied
  float factor = 1.0F;            // what a panel of a kernel that scales queries is multiplied by
  void* to = nullptr;
  int64_t to_stride = 0;
};

// The score function: logits are scale * s, or softcap * tanh(scale * s / softcap); in base 2 throughout.
struct ScoreFunction {
  float scale_log2 = 1.0F;  // scale * log2(e), where there is no softcap
  bool has_softcap = false;
  float inner = 0.0F;     // scale / softcap
  float cap_log2 = 0.0F;  // softcap * log2(e)
};

// Which keys of a step each query of the panel may see. Keys count from the tile's first.
struct StepMask {
  int32_t first = 0;        // key of the step's first row
  int32_t inner_begin = 0;  // every query sees these: nothing is tested
  int32_t inner_end = 0;
  const int32_t* begin = nullptr;  // [panel]: query j sees keys begin[j] <= key < end[j] ...
  const int32_t* end = nullptr;
  const uint8_t* cells = nullptr;  // ... or, when not null, those whose cell [key][panel] is set
};

struct SoftmaxStep {
  ScoreFunction score;
  StepMask mask;
  int32_t num_keys = 0;         // a multiple of key_step
  float* scores = nullptr;      // [key][panel]: q . k in, probabilities times 2^max out
  void* operand = nullptr;      // the same as the B of a product; `scores` itself for f32 operands
  float* row_max = nullptr;     // [panel], base 2; -inf at first
  float* row_sum = nullptr;     // [panel]
  uint32_t* row_nan = nullptr;  // [panel], not zero once a logit was NaN; null: not wanted
  float* out = nullptr;         // [dim_v][panel]: rescaled when a maximum grows
  int64_t out_rows = 0;
};

struct GradientStep {
  ScoreFunction score;
  StepMask mask;
  int32_t num_keys = 0;
  float* scores = nullptr;    // [key][panel]: q . k in, probabilities out
  float* grads = nullptr;     // [key][panel]: v . do in, gradients of q . k (scale left out) out
  void* prob_rows = nullptr;  // 16-bit operands: the same as the A, and the gradients as A and as B
  void* grad_rows = nullptr;
  void* grad_pairs = nullptr;
  const float* lse_log2 = nullptr;  // [panel]; +inf for a row without keys
  const float* delta = nullptr;     // [panel]
};

// A panel's [dim][panel] sums, times a factor each, as rows of a tensor.
struct FinishPanel {
  const float* sums = nullptr;
  const float* factors = nullptr;  // [panel]
  int64_t num_rows = 0;            // the panel's first rows
  int64_t dim = 0;
  ElementType type = ElementType::kF32;
  std::byte* to = nullptr;
  int64_t to_stride = 0;
};

// [row][dim] sums, times one factor, as rows of a tensor.
struct FinishRows {
  const float* sums = nullptr;
  int64_t sums_stride = 0;
  float factor = 1.0F;
  int64_t num_rows = 0;
  int64_t dim = 0;
  ElementType type = ElementType::kF32;
  std::byte* to = nullptr;
  int64_t to_stride = 0;
};

// Sum of o * do for each row.
struct RowDots {
  ElementType a_type = ElementType::kF32;
  ElementType b_type = ElementType::kF32;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t num_rows = 0;
  int64_t dim = 0;
  const uint8_t* dead = nullptr;
  float* dots = nullptr;
};

// Rows over their root mean square, times a weight for each column: y, and what each row was multiplied by.
struct NormRows {
  const float* x = nullptr;  // [num_rows, width], as y
  const float* weight = nullptr;
  float eps = 0.0F;
  int64_t num_rows = 0;
  int64_t width = 0;
  float* y = nullptr;
  float* scale = nullptr;
};
struct NormGradient {
  const float* dy = nullptr;
  const float* x = nullptr;
  const float* scale = nullptr;
  const float* weight = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
  float* dx = nullptr;
  float* dweight = nullptr;  // [width]: added to
};

struct Kernel {
  std::string_view name;
  std::string_view isa;
  DType dtype = DType::kF32;
  int64_t panel = 0;
  int64_t key_step = 0;   // keys come in multiples of this
  int64_t dim_step = 0;   // padded dims are multiples of this
  int64_t key_block = 0;  // keys a forward step takes
  int64_t grad_keys = 0;  // keys and queries a backward step takes
  int64_t grad_queries = 0;
  int64_t operand_bytes = 4;    // of an element of A and B
  int64_t a_group = 1;          // rows of A that lie interleaved: (a, k) of a group starts a_group * k after the group
  int64_t tile_step = 1;        // tiles of keys must be multiples of this
  bool scales_queries = false;  // panels of queries are multiplied by ScoreFunction's scale while they are packed
  bool needs_columns = false;   // `multiply_columns` reads its A stored [a][k] after all: keys are packed both ways

  void (*enter)() = nullptr;  // around a worker's steps, where the unit has a mode; null: nothing to do
  void (*leave)() = nullptr;
  void (*flag_rows)(const PackRows&) = nullptr;     // only sets not_finite; f32 operands
  void (*pack_rows)(const PackRows&) = nullptr;     // [row][dim]
  void (*pack_columns)(const PackRows&) = nullptr;  // [dim][row], when needs_columns
  void (*pack_panel)(const PackRows&) = nullptr;    // B of one panel's rows: [dim][panel]
  void (*pack_b_rows)(const PackRows&) = nullptr;   // B of rows: [row][dim]; to_stride in words for 16-bit operands
  void (*multiply)(const Product&) = nullptr;
  void (*multiply_columns)(const Product&) = nullptr;
  void (*softmax)(const SoftmaxStep&) = nullptr;
  void (*gradients)(const GradientStep&) = nullptr;
  void (*finish_panel)(const FinishPanel&) = nullptr;
  void (*finish_rows)(const FinishRows&) = nullptr;
  void (*row_dots)(const RowDots&) = nullptr;
  void (*norm)(const NormRows&) = nullptr;
  void (*norm_gradient)(const NormGradient&) = nullptr;
};

}  // namespace tessera::lanes::cpu
