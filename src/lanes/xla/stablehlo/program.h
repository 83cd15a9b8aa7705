// The programs of the XLA lane as text. A program is a function of the class alone: shapes, capacities and which
// operands there are. Worklists, cleanups, documents, valid counts, windows, scale and softcap are data, so one
// compiled program serves every contract and batch of its class.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contract/band.h"
#include "lanes/xla/stablehlo/builder.h"
#include "tessera/contract.h"
#include "tessera/plan.h"
#include "tessera/target.h"

namespace tessera::stablehlo {

// Of the text's form: it changes when a program of the same class is written another way.
inline constexpr std::string_view kProgramVersion = "2";

// One direction's worklist, padded to the class. A tile here is no longer than what there is of either side: the plan's
// may be far larger, and a program's tensors are whole tiles.
struct ListShape {
  int64_t tile_q = 0;
  int64_t tile_kv = 0;
  int64_t rows = 0;       // per mask
  int64_t width = 0;      // slots per row
  int64_t row_words = 0;  // 32-bit words of stored bits for each row of the plan's tile
  bool operator==(const ListShape&) const = default;
};

// Rows of tiles of every (batch row, head), which a pass walks one after the other, in parts of as many rows: part p
// has [p * per_part, (p + 1) * per_part) of those there are. A call runs one part.
struct PartRows {
  int64_t rows = 0;
  int64_t per_part = 0;
};

struct ProgramSpec {
  std::string class_key;
  Shape shape;
  bool has_softcap = false;
  bool has_sink_logits = false;
  bool has_documents = false;
  bool has_valid = false;
  int64_t masks = 0;
  std::array<ListShape, kNumDirections> lists;
  int64_t items = 0;         // capacity of the cleanup items
  int64_t words = 0;         // and of the stored bits, in 32-bit words
  int64_t stored_tiles = 0;  // of TPU kernels: cleanups with stored bits, as tiles of cells
  int64_t parts = 1;         // calls that share the rows of a pass
  // Of TPU kernels: how many calls share a direction's rows of tiles, so that the lists of each fit the scalar memory.
  std::array<int64_t, kNumDirections> calls = {1, 1, 1};
  // Of the stock Splash kernels, which compute their mask: it is part of their text, and not data.
  std::optional<Band> band = {};
  // Of TPU kernels: chips that share the work. `shape` and all else is then of one of them.
  int64_t chips = 1;
  bool chips_share_heads = false;  // else the batch's rows
  // Of TPU kernels: a forward's output comes as f32, for who merges several.
  bool is_wide = false;
  // Of TPU kernels: keys of a tile that are taken at once, whole lanes that divide the tile; 0 = what the compiler's
  // schedule likes best.
  int64_t sub_tile_kv = 0;
  // Of our TPU kernels: dQ has a kernel of its own, beside one for dK and dV (FitTarget); and whether the forward gives
  // log-sum-exp and maximum.
  bool is_backward_apart = false;
  bool has_stats = true;
  // Of TPU kernels: what the target gives each of them; 0 = not limited.
  int64_t scalar_bytes = 0;
  int64_t vector_bytes = 0;
  bool operator==(const ProgramSpec&) const = default;

  const ListShape& Of(Direction direction) const { return lists[static_cast<size_t>(direction)]; }
  // Query tiles of every query head, or for dkv key tiles of every key head.
  PartRows RowsOf(Direction direction) const;
};
// The class of a plan. Tables of cleanups have room for what nearly every batch of the class needs; a plan with more of
// them gets a larger power of two, which is another program. Parts are what the target has use for: calls that run at
// once on a CPU, whose cores a tile is too small for; elsewhere one, since the device is one and each call has a cost.
ProgramSpec SpecOf(const Contract& contract, const PlanView& plan, TargetKind target);

// The columns of the table of cleanup items, one i32 each.
enum class ItemColumn : int64_t {
  kKind,
  kQBegin,
  kQEnd,
  kKvBegin,
  kKvEnd,
  kDiagBegin,
  kDiagEnd,
  kWord,        // where its stored bits begin
  kConditions,  // kNeedsDocuments | kNeedsValid
  kSinkCount,   // leading tokens of the document that pass; kAnyCount for all
};
inline constexpr int64_t kItemColumns = 10;
inline constexpr int32_t kNeedsDocuments = 1;
inline constexpr int32_t kNeedsValid = 2;
inline constexpr int32_t kAnyCount = 0x7FFFFFFF;

// The columns of a worklist's slots: the tile across, and the items [begin, end) of its cleanup; none when it is full.
inline constexpr int64_t kSlotColumns = 3;

struct Program {
  std::string name;
  std::string text;
  std::vector<NamedType> inputs;
  std::vector<NamedType> outputs;
  int64_t parts = 1;
  int64_t devices = 1;  // that run it together; inputs and outputs are then those of one of them
};
// Inputs q, k, v, scale, part, [softcap], [sink_logits], then the plan's. Outputs of the part's rows alone, tile by
// tile: o [per_part, tile_q, dim_v], lse and max [per_part, tile_q], and the number of tiles it ran.
Result<Program> LowerForward(const ProgramSpec& spec);
// Inputs as forward, then do, lse, delta. Outputs of the part's rows: dq [per_part, tile_q, dim_qk], dk and dv
// [per_part, tile_kv, dim], [dsink_logits [per_part], each row's share], and the number of dkv tiles it ran.
Result<Program> LowerBackward(const ProgramSpec& spec);

// The same attention with every score at once, as one writes it without thinking of masks: what benchmarks compare
// with. Every row must see a key.
struct DenseSpec {
  Shape shape;
  bool is_causal = false;
  bool has_window = false;     // an operand window_left: keys from row - window_left on
  bool has_documents = false;  // an operand documents [batch, tokens], the same ids for queries and keys
};
// What it computes: o; dq, dk, dv from what the lane's backward gets, probabilities computed again from lse; or all
// four at once, probabilities computed once and kept for both passes, as automatic differentiation has it.
enum class DenseKind : uint8_t { kForward, kBackward, kStep };
// Inputs q, k, v, scale, [window_left], [documents], then do for the last two, and lse and delta for a backward.
Result<Program> LowerDense(const DenseSpec& spec, DenseKind kind);

}  // namespace tessera::stablehlo
