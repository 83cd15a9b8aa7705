// Lists of parameters as TOML or JSON.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <set>

#include "base/checked.h"
#include "base/spelling.h"
#include "base/try.h"
#include "io/limits.h"
#include "shard/document.h"
#include "shard/limits.h"
#include "tessera/shard.h"

namespace tessera {
namespace {

constexpr std::array<std::pair<std::string_view, ElementType>, 8> kTypes = {{{"f32", ElementType::kF32},
                                                                             {"bf16", ElementType::kBf16},
                                                                             {"f16", ElementType::kF16},
                                                                             {"i8", ElementType::kI8},
                                                                             {"i16", ElementType::kI16},
                                                                             {"i32", ElementType::kI32},
                                                                             {"i64", ElementType::kI64},
                                                                             {"bool", ElementType::kBool}}};

// "bf16[4096, 1024]" into a tensor; false where it is not so.
bool ReadType(std::string_view text, DeclaredTensor& tensor) {
  const size_t open = text.find('[');
  if (open == std::string_view::npos || text.back() != ']') return false;
  const auto type = std::find_if(kTypes.begin(), kTypes.end(),
                                 [&](const auto& entry) { return entry.first == text.substr(0, open); });
  if (type == kTypes.end()) return false;
  tensor.type = type->second;
  std::string_view rest = text.substr(open + 1, text.size() - open - 2);
  if (rest.empty()) return true;  // a scalar
  while (true) {
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    int64_t dim = 0;
    const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), dim);
    if (read.ec != std::errc() || dim < 1) return false;
    tensor.dims.push_back(dim);
    rest.remove_prefix(static_cast<size_t>(read.ptr - rest.data()));
    if (rest.empty()) break;
    if (rest.front() != ',') return false;
    rest.remove_prefix(1);
  }
  if (tensor.dims.size() > kMaxTensorRank) return false;
  const std::optional<int64_t> elements = CheckedProduct(tensor.dims);
  return elements && CheckedMul(*elements, BytesOf(tensor.type));
}

class Reader : public TreeReader {
 public:
  void ReadModel(const DocumentValue& table, DeclaredModel& model) {
    if (!IsTable(table, "model")) return;
    RefuseOthers(table, "model", {"num_heads", "num_kv_heads", "weights"});
    ReadHeads(table, "num_heads", model.num_q_heads);
    ReadHeads(table, "num_kv_heads", model.num_kv_heads);
    if (const DocumentValue* weights = table.Find("weights"); weights != nullptr) {
      std::string order;
      Read(*weights, "model.weights", order);
      if (order != "out_in" && order != "in_out") Violate("model.weights", "\"out_in\" or \"in_out\" expected");
      model.is_in_out = order == "in_out";
    }
  }

  void ReadTensors(const DocumentValue& tree, const char* section, TensorRole role, DeclaredModel& model) {
    const DocumentValue* table = tree.Find(section);
    if (table == nullptr || !IsTable(*table, section)) return;
    for (size_t i = 0; i < table->keys.size(); ++i) {
      DeclaredTensor tensor = {.name = table->keys[i], .role = role};
      const std::string at = Place(section, Excerpt(tensor.name));
      std::string type;
      const size_t faults = violations.size();
      Read(table->items[i], at, type);
      if (violations.size() != faults) continue;
      if (tensor.name.empty()) Violate(at, "a name");
      if (!ReadType(type, tensor)) {
        Violate(at, fmt::format("a type like \"bf16[4096, 1024]\" expected, of at most {} dimensions of at least 1, "
                                "got {}",
                                kMaxTensorRank, Excerpt(type)));
      }
      if (!names_.insert(tensor.name).second) Violate(at, "each name once, in whatever table");
      model.tensors.push_back(std::move(tensor));
    }
  }

 private:
  void ReadHeads(const DocumentValue& table, const char* name, int64_t& heads) {
    const DocumentValue* value = table.Find(name);
    if (value == nullptr) return;
    const std::string at = Place("model", name);
    const size_t faults = violations.size();
    Read(*value, at, heads);
    if (violations.size() == faults && heads < 1) Violate(at, "at least 1");
  }

  std::set<std::string> names_;
};

}  // namespace

std::string_view ToText(TensorRole role) {
  switch (role) {
    case TensorRole::kParameter:
      return "parameter";
    case TensorRole::kBuffer:
      return "buffer";
    case TensorRole::kActivation:
      return "activation";
  }
  return "";
}

Result<DeclaredModel> ParseDeclaredModel(std::string_view text) {
  const DocumentValue tree = TESSERA_TRY(shard::ParseTree(text, ErrorCode::kParametersInvalid));
  DeclaredModel model;
  Reader reader;
  reader.RefuseOthers(tree, "", {"version", "model", "parameters", "buffers", "activations"});
  shard::CheckVersion(reader, tree);
  if (const DocumentValue* table = tree.Find("model"); table != nullptr) reader.ReadModel(*table, model);
  reader.ReadTensors(tree, "parameters", TensorRole::kParameter, model);
  reader.ReadTensors(tree, "buffers", TensorRole::kBuffer, model);
  reader.ReadTensors(tree, "activations", TensorRole::kActivation, model);
  if (reader.violations.empty() && model.tensors.empty()) reader.Violate("parameters", "at least one");
  if (static_cast<int64_t>(model.tensors.size()) > kMaxShardTensors) {
    return Fail(ErrorCode::kTooLarge, fmt::format("at most {} tensors expected", kMaxShardTensors));
  }
  if (!reader.violations.empty()) return Fail(ErrorCode::kParametersInvalid, std::move(reader.violations));
  return model;
}

Result<DeclaredModel> ReadDeclaredModel(const std::string& path) {
  const std::string text = TESSERA_TRY(shard::ReadText(path));
  Result<DeclaredModel> model = ParseDeclaredModel(text);
  if (!model) return tl::unexpected(shard::InFile(std::move(model.error()), path));
  return model;
}

}  // namespace tessera
