// An export as JSON and as tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "export/arrays.h"

namespace tessera {
namespace {

constexpr std::string_view kNames[] = {"splash", "tokamax", "flex", "pallas"};

std::string_view NumpyName(ElementType type) {
  switch (type) {
    case ElementType::kI8:
      return "int8";
    case ElementType::kI16:
      return "int16";
    case ElementType::kI32:
      return "int32";
    case ElementType::kBool:
      return "bool";
    default:
      return "unknown";
  }
}

template <class T>
void AppendNumbers(const Tensor& tensor, std::string& text) {
  const auto* values = reinterpret_cast<const T*>(tensor.bytes.data());
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    fmt::format_to(std::back_inserter(text), "{}{}", i == 0 ? "" : ",", static_cast<int32_t>(values[i]));
  }
}

void AppendTensor(const Tensor& tensor, std::string& text) {
  fmt::format_to(std::back_inserter(text), R"({{"dtype": "{}", "shape": [{}], "data": [)", NumpyName(tensor.type),
                 fmt::join(tensor.shape, ", "));
  if (tensor.type == ElementType::kBool) {
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      text += i == 0 ? "" : ",";
      text += tensor.bytes[i] != std::byte{0} ? "true" : "false";
    }
  } else if (tensor.type == ElementType::kI8) {
    AppendNumbers<int8_t>(tensor, text);
  } else if (tensor.type == ElementType::kI16) {
    AppendNumbers<int16_t>(tensor, text);
  } else {
    AppendNumbers<int32_t>(tensor, text);
  }
  text += "]}";
}

std::string ToJson(const MaskFunction& function) {
  const auto limit = [](int64_t reach) { return reach < 0 ? std::string("null") : std::to_string(reach); };
  switch (function.kind) {
    case MaskFunction::Kind::kCausal:
      return fmt::format(R"({{"kind": "causal", "offset": {}}})", function.offset);
    case MaskFunction::Kind::kLocal:
      return fmt::format(R"({{"kind": "local", "window": [{}, {}], "offset": {}}})", limit(function.left),
                         limit(function.right), function.offset);
    case MaskFunction::Kind::kChunkedCausal:
      return fmt::format(R"({{"kind": "chunked_causal", "chunk": {}}})", function.chunk);
  }
  return "null";
}

}  // namespace

std::string_view ToText(Library library) { return kNames[static_cast<size_t>(library)]; }

Result<Library> ParseLibrary(std::string_view name) {
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found != std::end(kNames)) return static_cast<Library>(found - std::begin(kNames));
  return Fail(ErrorCode::kBadArgument, fmt::format("expected splash, tokamax, flex or pallas, found '{}'", name), "to");
}

const Tensor* Export::Find(std::string_view name) const {
  for (const ExportArray& array : arrays) {
    if (array.name == name) return array.value ? &*array.value : nullptr;
  }
  return nullptr;
}

std::string ToJson(const Export& exported) {
  std::string text =
      fmt::format("{{\n\"library\": \"{}\",\n\"direction\": \"{}\",\n\"tile\": [{}, {}],\n\"arrays\": {{",
                  ToText(exported.library), ToText(exported.direction), exported.tile.q, exported.tile.kv);
  std::string_view separator = "\n";
  for (const ExportArray& array : exported.arrays) {
    fmt::format_to(std::back_inserter(text), "{}  \"{}\": ", separator, array.name);
    if (array.value) {
      AppendTensor(*array.value, text);
    } else {
      text += "null";
    }
    separator = ",\n";
  }
  fmt::format_to(std::back_inserter(text), "\n}},\n\"mask_function\": {},\n\"segment_ids\": {{\"needed\": {}",
                 exported.mask_function ? ToJson(*exported.mask_function) : "null", exported.needs_segment_ids);
  if (exported.segment_ids) {
    text += ",\n  \"q\": ";
    AppendTensor(exported.segment_ids->q, text);
    text += ",\n  \"kv\": ";
    AppendTensor(exported.segment_ids->kv, text);
  }
  text += "}";
  if (!exported.operands.empty()) {
    fmt::format_to(std::back_inserter(text), ",\n\"operands\": [\"{}\"]", fmt::join(exported.operands, "\", \""));
  }
  for (const std::string_view suffix : {"", "_t"}) {
    const Tensor* slots = exported.Find(fmt::format("data_next{}", suffix));
    if (slots == nullptr) continue;
    // The axis that shrinking shortened: Splash keeps queries before keys in dkv too.
    const size_t axis = slots->shape.size() - (exported.direction == Direction::kDkv ? 2 : 1);
    fmt::format_to(std::back_inserter(text), ",\n\"grid_width{}\": {}", suffix, slots->shape[axis]);
  }
  fmt::format_to(std::back_inserter(text), ",\n\"tiles\": {{\"empty\": {}, \"partial\": {}, \"full\": {}}}\n}}\n",
                 exported.tiles.empty, exported.tiles.partial, exported.tiles.full);
  return text;
}

TensorMap ToTensors(const Export& exported) {
  TensorMap tensors;
  for (const ExportArray& array : exported.arrays) {
    if (array.value) tensors.emplace(array.name, *array.value);
  }
  if (exported.segment_ids) {
    tensors.emplace("q_segment_ids", exported.segment_ids->q);
    tensors.emplace("kv_segment_ids", exported.segment_ids->kv);
  }
  return tensors;
}

}  // namespace tessera
