// The tables of tessera/documents.h.
#include "tessera/documents.h"

namespace tessera {
namespace {

constexpr ColumnInfo kColumns[] = {
#define TESSERA_COLUMN(name, text, characters, fill) {text, characters, fill},
#include "tessera/columns.def"
#undef TESSERA_COLUMN
};
static_assert(std::size(kColumns) == kNumTokenColumns);

constexpr std::string_view kCategories[] = {"other",        "preamble", "func_signature", "func_body", "class_decl",
                                            "class_member", "comment",  "typedef",        "namespace"};

}  // namespace

std::span<const ColumnInfo> TokenColumns() { return kColumns; }
std::span<const std::string_view> StructureCategories() { return kCategories; }

std::optional<TokenColumn> FindTokenColumn(std::string_view name) {
  for (size_t i = 0; i < kNumTokenColumns; ++i) {
    if (kColumns[i].name == name) return static_cast<TokenColumn>(i);
  }
  return std::nullopt;
}

}  // namespace tessera
