// Machine: operations are read once, before the first step.
#include <algorithm>
#include <unordered_map>

#include "lanes/xla/mosaic/node.h"

namespace tessera::mosaic {
namespace {

int64_t IntegerOf(const Op& op, std::string_view name) {
  const Attribute* attribute = Find(op.attributes, name);
  return attribute == nullptr ? 0 : attribute->integer;
}

// Uses of outer values count where they are used and in every operation around it.
void CountUses(const Op& op, int32_t at, std::unordered_map<ValueId, int32_t>& last) {
  for (const ValueId operand : op.operands) last[operand] = at;
  for (const Region& region : op.regions) {
    for (const Op& inner : region.ops) CountUses(inner, at, last);
  }
}

// Strides to read `from` as if it had the shape `to`: 0 along axes that are 1 or missing.
std::vector<int64_t> BroadcastStrides(const Type& from, const Type& to) {
  const std::vector<int64_t> own = RowMajor(from.dims);
  std::vector<int64_t> strides(to.dims.size(), 0);
  const size_t missing = to.dims.size() - from.dims.size();
  for (size_t axis = 0; axis < from.dims.size(); ++axis) {
    if (from.dims[axis] != 1) strides[missing + axis] = own[axis];
  }
  return strides;
}

MatmulShape MatmulOf(const Function& function, const Op& op) {
  const Type& lhs = function.TypeOf(op.operands[0]);
  const Type& result = function.TypeOf(op.results[0]);
  const DotDims dims = *ParseDotDims(Find(op.attributes, "dimension_numbers")->text);
  MatmulShape shape;
  shape.m = result.dims[0];
  shape.n = result.dims[1];
  shape.k = lhs.dims[static_cast<size_t>(dims.lhs_contract[0])];
  shape.lhs_is_transposed = dims.lhs_contract[0] == 0;
  shape.rhs_is_transposed = dims.rhs_contract[0] == 1;
  const Attribute* precision = Find(op.attributes, "precision");
  shape.rounds = precision == nullptr || precision->text != "tpu.contract_precision<fp32>";
  return shape;
}

}  // namespace

void Machine::DecodeShapes(const Function& function, Node& node) {
  const Op& op = *node.op;
  switch (op.code) {
    case OpCode::kCmpI:
    case OpCode::kCmpF:
      node.number = IntegerOf(op, "predicate");
      break;
    case OpCode::kConcatenate:
    case OpCode::kDynamicRotate:
      node.number = IntegerOf(op, "dimension");
      break;
    case OpCode::kAssumeMultiple:
      node.number = IntegerOf(op, "multiple");
      break;
    case OpCode::kIota:
      node.number = Find(op.attributes, "dimensions")->integers[0];
      break;
    case OpCode::kMatmul:
      node.matmul = MatmulOf(function, op);
      break;
    case OpCode::kBroadcast:
      node.strides = BroadcastStrides(node.operand, node.type);
      break;
    case OpCode::kTranspose: {
      const std::vector<int64_t> own = RowMajor(node.operand.dims);
      for (const int64_t axis : Find(op.attributes, "permutation")->integers) {
        node.strides.push_back(own[static_cast<size_t>(axis)]);
      }
      break;
    }
    case OpCode::kExtractStridedSlice: {
      node.strides = RowMajor(node.operand.dims);
      const std::vector<Attribute>& offsets = Find(op.attributes, "offsets")->items;
      for (size_t axis = 0; axis < offsets.size(); ++axis) node.offset += offsets[axis].integer * node.strides[axis];
      break;
    }
    case OpCode::kExtract: {
      const std::vector<int64_t> own = RowMajor(node.operand.dims);
      const std::vector<int64_t>& position = Find(op.attributes, "static_position")->integers;
      for (size_t axis = 0; axis < position.size(); ++axis) node.offset += position[axis] * own[axis];
      break;
    }
    case OpCode::kStridedLoad:
      node.strides = Find(op.attributes, "strides")->integers;
      break;
    case OpCode::kMultiReduction: {
      const std::string& text = Find(op.attributes, "kind")->text;
      const size_t open = text.find('<');
      node.kind = text.substr(open + 1, text.size() - open - 2);
      const std::vector<int64_t>& reduced = Find(op.attributes, "reduction_dims")->integers;
      const std::vector<int64_t> kept = RowMajor(node.type.dims);
      size_t next = 0;
      for (int64_t axis = 0; axis < node.operand.rank(); ++axis) {
        const bool is_kept = std::ranges::find(reduced, axis) == reduced.end();
        node.strides.push_back(is_kept ? kept[next++] : 0);
      }
      break;
    }
    default:
      break;
  }
}

Machine::Block Machine::Decode(const Region& region) {
  Block block;
  block.reserve(region.ops.size());
  std::unordered_map<ValueId, int32_t> last;
  for (size_t at = 0; at < region.ops.size(); ++at) {
    const Op& op = region.ops[at];
    Node& node = block.emplace_back();
    node.op = &op;
    if (!op.results.empty()) node.type = function_.TypeOf(op.results[0]);
    if (!op.operands.empty()) node.operand = function_.TypeOf(op.operands[0]);
    node.count = node.type.IsVector() ? NumElements(node.type) : 1;
    DecodeShapes(function_, node);
    for (const Region& inner : op.regions) node.regions.push_back(Decode(inner));
    CountUses(op, static_cast<int32_t>(at), last);
    for (const ValueId result : op.results) last.emplace(result, static_cast<int32_t>(at));
  }
  // Only what this block itself defined dies in it: an outer value is read again in the next round of a loop.
  const auto dies = [&](ValueId value) {
    if (function_.TypeOf(value).IsVector()) block[static_cast<size_t>(last[value])].dead.push_back(value);
  };
  for (const Op& op : region.ops) {
    for (const ValueId result : op.results) dies(result);
  }
  for (const ValueId argument : region.arguments) {
    last.emplace(argument, 0);
    dies(argument);
  }
  return block;
}

}  // namespace tessera::mosaic
