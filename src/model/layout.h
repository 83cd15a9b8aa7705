// A model over the devices of a mesh: what each device has of every tensor, and which devices sum what they have.
// Every device runs the one definition on its share (rows, heads, columns of the MLP, tokens), and what a share cannot
// know is summed over neighbours in so many words: nothing is left to a partitioner. Without a mesh there is one
// device, which has everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/stablehlo/program.h"
#include "tessera/model.h"
#include "tessera/shard.h"

namespace tessera::model {

// Elements [begin, begin + count) of a dimension.
struct Range {
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const Range&) const = default;
};
using Pieces = std::vector<std::vector<Range>>;  // of each dimension, in the order of a device

struct Layout {
  ModelSpec whole;
  ModelSpec own;                    // rows, heads, MLP columns and tokens of a row that one device has
  std::optional<Mesh> mesh = {};    // of two devices or more
  std::optional<ShardTable> table;  // every operand's spec, there after SetOperands

  int64_t NumDevices() const { return mesh ? mesh->NumDevices() : 1; }
  int64_t SizeOf(std::string_view axis) const { return mesh ? mesh->SizeOf(axis) : 1; }
  // A device's place along an axis; 0 where there is none.
  int64_t PlaceOf(int64_t device, std::string_view axis) const;
  // Devices that differ along these axes only; empty where each would be alone.
  stablehlo::DeviceGroups Groups(const std::vector<std::string_view>& axes) const;
  // What a device has of a parameter, its moments or its gradient. The columns of `qkv` and `fc1` are dealt so that
  // each device has whole heads of queries, keys and values, and as many columns of the gate as of what it opens.
  Pieces PiecesOf(const std::string& name, int64_t device) const;
};

// TSR-S005 where the model does not divide: every violation. `row_tokens` of a device is as all have it until attention
// says how tokens are cut.
Result<Layout> MakeLayout(const ModelSpec& spec, const std::optional<Mesh>& mesh);
// Makes the table, of what programs take beside the model's own tensors too, and audits it. Attention's operands are
// each device's own, but for those in `shared`.
Status SetOperands(Layout& layout, const std::vector<stablehlo::NamedType>& attention_inputs,
                   const std::set<std::string>& shared = {});

// The text of a program and all there is to say of it.
struct WrittenModel {
  std::string name;
  std::vector<stablehlo::NamedType> inputs;
  std::vector<stablehlo::NamedType> outputs;  // named like `values`
};
Result<stablehlo::Program> FinishProgram(stablehlo::Builder& b, const Layout& layout, WrittenModel model,
                                         const stablehlo::Values& values);

// A dense tensor's pieces, and back.
struct DenseShape {
  std::vector<int64_t> dims;
  int64_t element_bytes = 4;
};
std::vector<std::byte> CutOut(const DenseShape& shape, std::span<const std::byte> whole, const Pieces& pieces);
void PutBack(const DenseShape& shape, std::span<const std::byte> own, const Pieces& pieces, std::span<std::byte> whole);

}  // namespace tessera::model
