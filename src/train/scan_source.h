// What is known of each byte of a source text: a light scanner of C, C++ and Python for the structure columns of rows.
// It never looks ahead: a byte's values follow from the bytes up to it, so that they tell nothing of the next one,
// which is what a model is to predict. Not a goal: parsing. It is right about most code and lost in none.
#pragma once

#include <string>
#include <string_view>

#include "tessera/documents.h"

namespace tessera::train {

enum class Language : uint8_t { kC, kPython, kOther };
Language LanguageOf(std::string_view path);  // by its ending

// token_ast_node_type: what a byte is part of.
enum class NodeType : uint8_t { kBlank, kWord, kNumber, kString, kComment, kDirective, kOpening, kClosing, kSign };

inline constexpr int32_t kMaxDepth = 63;  // of ast_depth and sibling_index: what is more counts as this

// The bytes as tokens, and of the columns token_structure_ids, token_ast_depth, token_sibling_index and
// token_ast_node_type. A text of another language has its bytes and no columns.
Document ScanSource(std::string_view text, Language language);

}  // namespace tessera::train
