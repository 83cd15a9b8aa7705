// What the host side and the kernels agree on: the plan as it lies in device memory, each kernel's parameters, tiles,
// shared memory and workspace. Compiled by nvcc and by the host's compiler: plain data of fixed size only.
//
// A launch depends on the class alone. Everything that a batch changes lies in the plan image, which the kernels find
// through its header, so that a captured launch replays with another batch's image copied over the old one.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TESSERA_CUDA_BOTH __host__ __device__ __forceinline__
#else
#define TESSERA_CUDA_BOTH inline
#endif

namespace tessera::lanes::cuda {

// ---- tiles -----------------------------------------------------------------------------------------------------
// The plan's tiles per direction are the kernels' own. "Rows" are the tokens that stay in shared memory (queries of
// forward and dq, keys of dkv), "columns" those that stream past.
enum class KernelKind : int32_t {
  kForward = 0,
  kDq = 1,
  kDkv = 2,
  kPrepare = 3,
  kSinks = 4,
  kJoin = 5
};  // 0 to 2 as Direction
enum class Softcap : int32_t {
  kNone = 0,
  kBounded = 1,  // forward: a cap of at most kMaxBoundedCap in bf16 needs no running maximum
  kWide = 2,     // forward: any other cap
};
inline constexpr double kMaxBoundedCap = 60.0;
// In bf16. With 192 dims that kernel would spill.
constexpr bool HasBounded(double cap, int64_t dim_qk) { return cap <= kMaxBoundedCap && dim_qk != 192; }

struct Tile {
  int32_t rows;
  int32_t cols;
};
constexpr Tile TileOf(KernelKind kind, int32_t dim_qk) {
  if (kind == KernelKind::kForward) return {128, dim_qk <= 192 ? 128 : 64};
  if (kind == KernelKind::kDq) return {128, 64};
  return {dim_qk <= 128 ? 128 : 64, 64};  // dkv: keys by queries
}
inline constexpr int64_t kMaxStatistics =
    (int64_t{1} << 31) - 1;                           // batch * num_q_heads * PadTokens(q_len): 32-bit places
inline constexpr int32_t kMaxTokens = (1 << 24) - 1;  // of a sequence: sink counts have 24 bits
inline constexpr int32_t kPadTokens = 128;            // row statistics of the workspace are padded to this many tokens
constexpr int64_t PadTokens(int64_t tokens) { return (tokens + kPadTokens - 1) / kPadTokens * kPadTokens; }

// ---- the plan in device memory ---------------------------------------------------------------------------------
// One image: PlanHeader at its beginning, sections behind it. `Section` is a section's place in units of 16 bytes from
// the image's beginning (which is 256-byte aligned); 0: the section is absent.
using Section = uint32_t;

// A cell is 64 rows and 64 columns of a tile, what a consumer warpgroup forms at once. Where a row begins and ends, at
// a window's edge, a diagonal or the bounds of documents, one warpgroup's 64 rows often see nothing of a cell that the
// other's do see: it need not form it.
inline constexpr int32_t kCellTokens = 64;
struct Idle {
  uint8_t lead[2];   // cells without a pair at the beginning, of the rows 0 to 63 and of the rows 64 to 127
  uint8_t trail[2];  // the same at the end; both together never more than there are
};
// How many heads of a dkv row are so at both ends, each after as many slots.
TESSERA_CUDA_BOTH int32_t HeadsApart(const Idle& idle, int32_t col_heads) {
  const bool is_idle = (idle.lead[0] | idle.lead[1] | idle.trail[0] | idle.trail[1]) != 0;
  return is_idle && col_heads > 1 ? col_heads : 1;
}

// A row of tiles for one head, or a part of one, in the order workers take them. There are rows_per_mask * batch *
// num_q_heads rows (forward, dq) or num_kv_heads (dkv); those without slots are there too, because zeros must be
// written.
struct Work {
  int32_t row;         // tile row within its mask
  int32_t head;        // batch row * num_q_heads + query head; of dkv: batch row * num_kv_heads + key head
  int32_t slot_begin;  // in slots; of dkv 0 where it goes through whole rows of query heads, which row_offsets say
  int32_t slot_count;  // of dkv: over all of its heads
  int32_t part;        // where its sums go, for `join` to add; -1: the row is whole, and its result is written
  int32_t col_head;    // dkv: the first query head, of those of a batch row
  int32_t col_heads;   // dkv: how many, whole rows of each; 0: slots [slot_begin, slot_begin + slot_count) of col_head
  Idle idle;           // of its slots; of dkv those of each head, zeros unless all of them have one mask
};

// A row that was cut: its parts are `num_parts` neighbours, added in this order.
struct Split {
  int32_t row;
  int32_t head;  // as in Work
  int32_t first_part;
  int32_t num_parts;
};

// One surviving tile of a row. `cleanup` is 0 for a tile whose pairs are all allowed, else 1 + the first of its items.
// A full tile that reaches past the streamed tokens' length (kv_len, of dkv q_len) gets item 0, "every pair": words
// are always clipped by that length.
struct Slot {
  int32_t index;  // of the tile of streamed tokens
  int32_t cleanup;
};

// A CleanupItem with its conditions spelled out. Tile-relative: row r and column c pass when
//   row_begin <= r < row_end  and  max(col_begin, r + diag_begin) <= c < min(col_end, r + diag_end)
// and the flags hold. dkv has a table of its own with rows and columns exchanged: diag [a, b) becomes [1 - b, 1 - a),
// kBits tiles are stored transposed, and kRows (bits of queries) become kBits with kSameBits.
enum ItemFlags : uint32_t {
  kItemLast = 1U << 0,      // of its cleanup
  kItemDocument = 1U << 1,  // in the row token's document; set with kItemSink too
  kItemValid = 1U << 2,     // both tokens valid
  kItemBits = 1U << 3,      // bit c of the row's words at `bits`
  kItemRows = 1U << 4,      // bit r of the words at `bits`
  kItemSameBits = 1U << 5,  // with kItemBits: one row of words for all rows
  kItemSink = 1U << 6,      // the key is one of the first flags >> kItemSinkShift tokens of its document
};
inline constexpr int32_t kItemSinkShift = 8;
inline constexpr int32_t kItemMaxSink = (1 << 24) - 1;  // larger counts are stored as this
struct Item {
  int32_t row_begin;
  int32_t row_end;
  int32_t col_begin;
  int32_t col_end;
  int32_t diag_begin;
  int32_t diag_end;
  uint32_t flags;
  uint32_t bits;  // first u64 word of a stored tile: rows of tile.cols / 64 words (rounded up), or one bit per row
};

// What a row token's document is on the streamed side. forward, dq: keys [begin, end), and key k is token k - origin of
// the document. dkv: queries [begin, end), and the key itself is token `origin` of its document. Without a document,
// or where the other side has none of it: begin = end = 0. `next` chains the further stretches of a document that
// reappears: 1 + index in the spans section, ascending; 0: none.
struct TokenSpan {
  int32_t begin;
  int32_t end;
  int32_t origin;
  int32_t next;
};

struct ValidTokens {
  int32_t q;  // the whole length where validity is absent
  int32_t kv;
};

struct PlanList {
  Section work;  // Work [work_count]
  int32_t work_count;
  Section slots;        // Slot []
  Section items;        // Item []; item 0 lets every pair of the tile pass
  Section row_offsets;  // u32 [masks * rows_per_mask + 1]; dkv reads it, the others have it in Work
  int32_t rows_per_mask;
  Section tokens;  // TokenSpan [batch][rows_per_mask * tile.rows]; absent without documents
  Section spans;   // TokenSpan []: further stretches
  Section splits;  // Split [split_count]
  int32_t split_count;
};
struct PlanHeader {
  PlanList lists[3];  // by KernelKind
  Section mask_of;    // u32 [batch * num_q_heads]
  Section valid;      // ValidTokens [batch]
  Section bits;       // u64 []; absent without stored bits
  uint32_t reserved[7];
};
static_assert(sizeof(Work) == 32 && sizeof(Split) == 16 && sizeof(Slot) == 8 && sizeof(Item) == 32 &&
              sizeof(TokenSpan) == 16);
static_assert(sizeof(PlanList) == 40 && sizeof(PlanHeader) == 160);

// ---- tensors ---------------------------------------------------------------------------------------------------
// A CUtensorMap. Five axes, innermost first: 64 elements of a panel, token, panel (dim / 64 of them, 128 bytes apart),
// head, batch; SWIZZLE_128B, no interleave, no out-of-bounds fill value, L2 promotion 256 bytes. Strides are the
// tensor's, in bytes. The box is {64, tokens, panels, 1, 1}.
struct alignas(64) TensorMap {
  uint64_t words[16];
};
static_assert(sizeof(TensorMap) == 128);
struct Box {
  int32_t tokens;
  int32_t panels;
};
constexpr Box RowBox(KernelKind kind, int32_t dim_qk, int32_t dim) { return {TileOf(kind, dim_qk).rows, dim / 64}; }
constexpr Box ColBox(KernelKind kind, int32_t dim_qk, int32_t dim) { return {TileOf(kind, dim_qk).cols, dim / 64}; }
constexpr Box OutBox() { return {64, 1}; }

// The same tensor for plain loads. Strides count elements.
struct TensorRows {
  const void* data;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t token_stride;
};

// Softcap, folded: u(x) = most * tanh(x * scale / cap) for a raw score x = q . k. Forward takes u as the exponent of 2;
// backward wants tanh itself too, for the slope 1 - tanh^2.
inline constexpr int32_t kNearTerms = 4;
struct SoftcapParams {
  float near[kNearTerms];  // |x| <= near_range: x * (near[0] + near[1] x^2 + ...)
  float near_range;
  float far_exp;   // beyond: most * (1 - 2 / (1 + exp2(|x| * far_exp))), with the sign of x
  float most;      // forward: cap_log2; backward: 1
  float cap_log2;  // cap * log2(e)
};
// tanh(y) / y in y^2 for |y| <= 1/2, within 6e-7.
inline constexpr double kTanhNear[kNearTerms] = {0.999999456, -0.333263179, 0.131902964, -0.04440222};
constexpr SoftcapParams MakeSoftcap(double scale, double cap, bool is_backward) {
  SoftcapParams out{};
  if (cap <= 0) return out;
  const double log2e = 1.4426950408889634;
  const double b = scale / cap;
  const double most = is_backward ? 1.0 : cap * log2e;
  double power = most * b;
  for (int i = 0; i < kNearTerms; ++i, power *= b * b) out.near[i] = static_cast<float>(kTanhNear[i] * power);
  out.near_range = static_cast<float>(0.5 / b);
  out.far_exp = static_cast<float>(2 * b * log2e);
  out.most = static_cast<float>(most);
  out.cap_log2 = static_cast<float>(cap * log2e);
  return out;
}

// ---- kernel parameters: one struct, by value, as the kernel's only parameter -----------------------------------
struct ShapeParams {
  int32_t batch;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t q_len;
  int32_t kv_len;
  int32_t padded_q;  // PadTokens(q_len)
  float scale;
  float scale_log2;  // scale * log2(e)
  SoftcapParams softcap;
};

// 384 threads. Reads q, k, v, sinks; writes o, lse, row_max.
struct ForwardParams {
  TensorMap q;  // RowBox
  TensorMap k;  // ColBox
  TensorMap v;  // ColBox, dim_v
  TensorMap o;  // OutBox
  TensorRows v_rows;
  const PlanHeader* plan;
  const float* sinks;  // [num_q_heads]; null: none
  float* lse;          // [batch, num_q_heads, q_len]; null: not wanted
  float* row_max;      // the same
  uint32_t* ticket;    // zero before the launch when the grid is smaller than the work; else not touched
  float* parts;        // sums of parts (PartFloats); null where no row is cut
  ShapeParams shape;
};

// 256 threads, grid {padded_q / 64, batch * num_q_heads}. Reads o, do, lse, sinks; writes lse2 = lse * log2(e) and
// delta of the workspace (+inf and 0 for rows without keys and for padding), zeros the tickets, writes sink_parts.
struct PrepareParams {
  TensorRows o;     // not read when delta_in is given
  TensorRows dout;  // the same
  const float* lse;
  const float* delta_in;  // [batch, num_q_heads, q_len]; null: computed from o and do
  const float* sinks;     // null: none
  float* lse2;            // [batch * num_q_heads, padded_q]
  float* delta;           // the same
  float* sink_parts;      // [batch * num_q_heads, padded_q / 64]; null: dsink is not wanted
  uint32_t* tickets;      // [kNumTickets]
  ShapeParams shape;
  int32_t dim_v;
  int32_t reserved;
};

// 384 threads each. dq reads q, do (rows), k, v (columns), writes dq; dkv reads k, v (rows), q, do (columns), writes
// dk, dv. Both read lse2 and delta.
struct BackwardParams {
  TensorMap rows[2];       // RowBox; dq: q, do; dkv: k, v
  TensorMap cols[2];       // ColBox; dq: k, v; dkv: q, do
  TensorMap out[2];        // OutBox; dq: dq, unused; dkv: dk, dv
  TensorRows col_rows[2];  // dq: k, unused; dkv: q, do
  const PlanHeader* plan;
  const float* lse2;
  const float* delta;
  uint32_t* ticket;
  float* parts;  // sums of parts (PartFloats), dK or dQ first; null where no row is cut
  ShapeParams shape;
};

// 256 threads, a block for every kJoinRows tokens of every row that may be cut; launched where the class cuts rows.
// Adds the parts of forward's, dq's or dkv's rows in their order, and writes what a whole row's end would have written.
struct JoinParams {
  const PlanHeader* plan;
  const float* parts;
  TensorRows out[2];   // written; forward: o; dq: dq; dkv: dk, dv
  int32_t dims[2];     // of each; 0: there is none
  float factors[2];    // of the sums; not of forward
  const float* sinks;  // forward; null: none
  float* lse;          // forward; null: not wanted
  float* row_max;      // the same
  int32_t kind;        // whose rows: a KernelKind
  int32_t heads;       // of the row tensors
  int32_t len;         // of the row tensors, in tokens
  int32_t tile_rows;
  int32_t part_rows;  // PartRows()
  int32_t reserved;
};

// 128 threads, grid num_q_heads; launched when dsink is wanted. Sums sink_parts in one fixed order.
struct SinksParams {
  const float* sink_parts;
  float* dsink;  // [num_q_heads]
  ShapeParams shape;
};

// ---- launches --------------------------------------------------------------------------------------------------
inline constexpr int32_t kThreads = 384;
inline constexpr int32_t kPrepareThreads = 256;
inline constexpr int32_t kPrepareRows = 64;  // query rows of a block of prepare
inline constexpr int32_t kSinksThreads = 128;
inline constexpr int32_t kJoinThreads = 256;
inline constexpr int32_t kJoinRows = 32;      // tokens of a block of join, eight threads each
inline constexpr int32_t kForwardTicket = 0;  // places in a workspace's tickets
inline constexpr int32_t kDqTicket = 1;
inline constexpr int32_t kDkvTicket = 2;
inline constexpr int32_t kNumTickets = 16;

// Stages of the rings: row tiles, and columns of the first and second tensor.
struct Stages {
  int32_t rows;
  int32_t cols0;
  int32_t cols1;
};
constexpr Stages StagesOf(KernelKind kind, int32_t dim_qk) {
  if (kind == KernelKind::kForward) return {dim_qk <= 128 ? 2 : 1, 2, 2};
  if (dim_qk <= 128) return {2, 3, 3};
  if (kind == KernelKind::kDkv) return dim_qk <= 192 ? Stages{2, 3, 3} : Stages{1, 2, 2};
  return dim_qk <= 192 ? Stages{1, 3, 3} : Stages{1, 2, 1};
}
inline constexpr int32_t kControlBytes = 8 * 1024;  // barriers and what travels with the stages
// Dynamic shared memory of forward, dq and dkv.
constexpr int32_t SharedBytes(KernelKind kind, int32_t dim_qk, int32_t dim_v) {
  const Tile tile = TileOf(kind, dim_qk);
  const Stages stages = StagesOf(kind, dim_qk);
  const int32_t control = kind == KernelKind::kForward ? kControlBytes : 3 * 1024;
  if (kind == KernelKind::kForward) {
    return 2 * (stages.rows * tile.rows * dim_qk + tile.cols * (stages.cols0 * dim_qk + stages.cols1 * dim_v)) +
           control;
  }
  return 2 * (stages.rows * tile.rows * (dim_qk + dim_v) + tile.cols * (stages.cols0 * dim_qk + stages.cols1 * dim_v)) +
         control;
}
// CTAs of forward, dq and dkv: fewer than there is work take tickets.
constexpr int32_t GridOf(int32_t work_count, int32_t num_sms) { return work_count < num_sms ? work_count : num_sms; }

// What a part leaves for join: `rows` rows of sums, and forward's row statistics behind them: {sum of probabilities,
// their shift in log2 units, largest score, whether there was a key}. Rows past the tensor's end are not kept.
inline constexpr int32_t kPartStatistics = 4;
constexpr TESSERA_CUDA_BOTH int32_t PartRows(int32_t tile_rows, int32_t len) {
  const int32_t rows = (len + 15) / 16 * 16;
  return rows < tile_rows ? rows : tile_rows;
}
constexpr TESSERA_CUDA_BOTH int64_t PartFloats(KernelKind kind, int32_t rows, int32_t dims) {
  return int64_t{rows} * (dims + (kind == KernelKind::kForward ? kPartStatistics : 0));
}

// Workspace, in bytes from its beginning (64-byte aligned). Forward: the tickets, zero before the launch (a kernel
// leaves them so) when GridOf() < work_count, then parts.
struct BackwardWorkspace {
  int64_t tickets;
  int64_t lse2;
  int64_t delta;
  int64_t sink_parts;
  int64_t dq_parts;
  int64_t dkv_parts;
  int64_t bytes;
};
inline constexpr int64_t kTicketBytes = 4 * kNumTickets;
constexpr int64_t AlignParts(int64_t bytes) { return (bytes + 255) / 256 * 256; }
constexpr BackwardWorkspace BackwardWorkspaceOf(int64_t batch, int64_t num_q_heads, int64_t q_len, bool has_sinks,
                                                int64_t dq_floats, int64_t dkv_floats) {
  const int64_t rows = batch * num_q_heads * PadTokens(q_len);
  BackwardWorkspace out{};
  out.lse2 = kTicketBytes;
  out.delta = out.lse2 + 4 * rows;
  out.sink_parts = out.delta + 4 * rows;
  const int64_t end = out.sink_parts + (has_sinks ? 4 * rows / kPrepareRows : 0);
  out.dq_parts = dq_floats > 0 ? AlignParts(end) : end;
  out.dkv_parts = out.dq_parts + 4 * dq_floats;
  if (dkv_floats > 0) out.dkv_parts = AlignParts(out.dkv_parts);
  out.bytes = out.dkv_parts + 4 * dkv_floats;
  return out;
}

}  // namespace tessera::lanes::cuda
