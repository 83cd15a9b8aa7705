// Parameters by name, as programs, files and tests know them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/row_batch.h"

namespace tessera::model {

inline constexpr std::string_view kEmbedding = "wte";
inline constexpr std::string_view kFinalNorm = "final_norm";
inline constexpr std::string_view kHead = "lm_head";
inline constexpr std::string_view kStructureOut = "structure_emb.out";

// Of one layer: "layers.0.qkv".
std::string LayerName(int64_t layer, std::string_view what);

// The parts of a structure embedding, in the order of RowBatch::structure, and how many ids each tells apart: a larger
// one counts as the last, a negative one as none.
struct StructurePart {
  std::string_view name;  // "structure_emb.dep_level"
  int64_t ids = 0;
};
inline constexpr std::array<StructurePart, kNumStructureInputs> kStructureParts = {{
    {"structure_emb.structure", 64},
    {"structure_emb.dep_level", 64},
    {"structure_emb.ast_depth", 64},
    {"structure_emb.sibling_index", 64},
    {"structure_emb.ast_node_type", 256},
}};

}  // namespace tessera::model
