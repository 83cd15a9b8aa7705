// Canonical contract text. TOML and JSON are printed from one list of fields, so they cannot drift apart.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/spelling.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

enum class Format { kToml, kJson };

struct Field {
  std::string_view key;
  std::string literal;
};

struct Section {
  std::string_view name;  // empty: the document itself
  std::vector<Field> fields;
};

std::string Literal(int64_t value) { return fmt::format("{}", value); }
std::string Literal(bool value) { return value ? "true" : "false"; }

// The shortest text that reads back as the same double, and as a float: 30.0, not 30.
std::string Literal(double value, Format format) {
  // Only a contract that Validate refuses holds these; JSON has no word for them.
  if (!std::isfinite(value)) return format == Format::kJson ? "null" : fmt::format("{}", value);
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string Literal(const Limit& limit) {
  switch (limit.kind) {
    case Limit::Kind::kExact:
      return "\"exact\"";
    case Limit::Kind::kPow2:
      return "\"pow2\"";
    case Limit::Kind::kNumber:
      break;
  }
  return Literal(limit.number);
}

Field MaskField(const Mask& mask) {
  if (mask.heads.size() == 1) return {"expr", QuoteText(ToText(mask.heads.front()))};
  std::string list;
  for (const MaskExpr& head : mask.heads) {
    if (!list.empty()) list += ", ";
    list += QuoteText(ToText(head));
  }
  return {"heads", "[" + list + "]"};
}

std::vector<Section> Fields(const Contract& contract, Format format) {
  const Shape& shape = contract.shape;
  std::vector<Section> sections;
  sections.push_back({"", {{"version", Literal(contract.version)}}});
  sections.push_back({"shape",
                      {{"batch", Literal(shape.batch)},
                       {"q_len", Literal(shape.q_len)},
                       {"kv_len", Literal(shape.kv_len)},
                       {"num_q_heads", Literal(shape.num_q_heads)},
                       {"num_kv_heads", Literal(shape.num_kv_heads)},
                       {"dim_qk", Literal(shape.dim_qk)},
                       {"dim_v", Literal(shape.dim_v)},
                       {"dtype", QuoteText(ToText(shape.dtype))}}});
  sections.push_back({"mask", {MaskField(contract.mask), {"offset", Literal(contract.mask.offset)}}});
  sections.push_back({"score",
                      {{"scale", Literal(contract.score.scale, format)},
                       {"softcap", Literal(contract.score.softcap, format)},
                       {"sink_logits", Literal(contract.score.sink_logits)}}});
  sections.push_back({"tiles",
                      {{"q", Literal(contract.tiles.q)},
                       {"kv", Literal(contract.tiles.kv)},
                       {"reason", QuoteText(contract.tiles_reason)}}});
  sections.push_back({"capacity",
                      {{"width", Literal(contract.capacity.width)},
                       {"width_transposed", Literal(contract.capacity.width_transposed)},
                       {"cleanups", Literal(contract.capacity.cleanups)}}});
  if (contract.routing) {
    const Routing& routing = *contract.routing;
    sections.push_back({"routing",
                        {{"query_tile", Literal(routing.query_tile)},
                         {"kv_tile", Literal(routing.kv_tile)},
                         {"selected_block", Literal(routing.selected_block)},
                         {"block_stride", Literal(routing.block_stride)},
                         {"compression_block", Literal(routing.compression_block)},
                         {"top_n", Literal(routing.top_n)},
                         {"first_blocks", Literal(routing.first_blocks)},
                         {"hierarchical", Literal(routing.hierarchical)},
                         {"meta_ratio", Literal(routing.meta_ratio)},
                         {"meta_keep", Literal(routing.meta_keep)},
                         {"union_capacity", Literal(routing.union_capacity)}}});
  }
  return sections;
}

}  // namespace

std::string ToToml(const Contract& contract) {
  std::string out;
  for (const Section& section : Fields(contract, Format::kToml)) {
    if (!section.name.empty()) out += fmt::format("\n[{}]\n", section.name);
    for (const Field& field : section.fields) out += fmt::format("{} = {}\n", field.key, field.literal);
  }
  return out;
}

std::string ToJson(const Contract& contract) {
  std::string out = "{";
  std::string_view between = "\n";
  for (const Section& section : Fields(contract, Format::kJson)) {
    const bool is_table = !section.name.empty();
    const std::string_view indent = is_table ? "    " : "  ";
    out += between;
    if (is_table) out += fmt::format("  \"{}\": {{\n", section.name);
    between = ",\n";
    bool first = true;
    for (const Field& field : section.fields) {
      if (!first) out += ",\n";
      first = false;
      out += fmt::format("{}\"{}\": {}", indent, field.key, field.literal);
    }
    if (is_table) out += "\n  }";
  }
  return out + "\n}\n";
}

}  // namespace tessera
