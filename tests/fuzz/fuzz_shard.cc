// Lists of parameters and files of specs: any text gives an error or what can be laid out on a mesh, audited and
// fingerprinted. The same text is read as both.
#include "fuzz.h"
#include "tessera/shard.h"

namespace tessera {

bool FuzzShard(const uint8_t* data, size_t size) {
  static const auto mesh = ParseMesh("data=3,expert=2,model=4");
  static const auto fixed =
      ParseDeclaredModel("version = 1\n[parameters]\n\"a.fc1\" = \"f32[24, 8]\"\nb = \"f32[6]\"\n");
  Require(mesh.has_value() && fixed.has_value(), "the fixed texts are good");
  const std::string_view text = AsText(data, size);
  const auto check = [](const Result<ShardTable>& table) {
    if (!table) return Require(!ToText(table.error()).empty(), "an error has a text");
    const bool is_good = AuditShards(*table).has_value();
    const ShardFigures figures = FiguresOf(*table);
    Require(figures.device_bytes <= figures.total_bytes && figures.replicated_bytes <= figures.total_bytes,
            "parts are less");
    for (const ShardRow& row : table->rows) {
      Require(!is_good || LocalDims(row, table->mesh).has_value(), "what passes has a place");
    }
    Require(CheckShardKey(*table, ShardKey(*table, "x")).has_value(), "its own key is not stale");
    Require(!ToText(*table).empty() && !ToJson(*table).empty(), "it has a text");
  };
  const auto rules = ParseSpecs(text);
  if (rules) check(MakeShardTable(*fixed, *mesh, {.rules = *rules, .zero3 = true}));
  const auto model = ParseDeclaredModel(text);
  if (model) check(MakeShardTable(*model, *mesh, {.rules = {}, .zero3 = true}));
  Require(rules || !ToText(rules.error()).empty(), "an error has a text");
  Require(model || !ToText(model.error()).empty(), "an error has a text");
  return rules || model;
}

}  // namespace tessera
