// The one table of mask terms: how each is written and what numbers it takes. Parser, printer and validator read it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "contract/limits.h"
#include "tessera/contract.h"

namespace tessera {

struct TermArgument {
  std::string_view name;
  int64_t min = 0;
};

struct TermSpec {
  TermKind kind;
  std::string_view word;
  std::string_view usage;
  int num_arguments = 0;
  std::array<TermArgument, 2> arguments{};
};

inline constexpr std::array<TermSpec, 12> kTermSpecs = {{
    {TermKind::kFull, "full", "full"},
    {TermKind::kCausal, "causal", "causal"},
    {TermKind::kWindow, "window", "window(left, right)", 2, {{{"left", -1}, {"right", -1}}}},
    {TermKind::kChunk, "chunk", "chunk(size)", 1, {{{"size", 1}}}},
    {TermKind::kPrefix, "prefix", "prefix(count)", 1, {{{"count", 0}}}},
    {TermKind::kSink, "sink", "sink(count)", 1, {{{"count", 0}}}},
    {TermKind::kSinkDocument, "sink", "sink(count, document)", 1, {{{"count", 0}}}},
    {TermKind::kDocuments, "documents", "documents"},
    {TermKind::kDocumentsEqual, "documents", "documents(equal)"},
    {TermKind::kValid, "valid", "valid"},
    {TermKind::kBlocks, "blocks", "blocks"},
    {TermKind::kBitmap, "bitmap", "bitmap(\"file.npy\")"},
}};

// Null for a value that is no enumerator.
inline const TermSpec* FindTermSpec(TermKind kind) {
  for (const TermSpec& spec : kTermSpecs) {
    if (spec.kind == kind) return &spec;
  }
  return nullptr;
}

// What is wrong with argument `index` of the term, or empty: "expected left from -1 to 1073741824, found -2".
std::string ArgumentProblem(const TermSpec& spec, int index, int64_t value);

}  // namespace tessera
