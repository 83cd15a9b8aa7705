// See kernel_program.h.
#include "lanes/xla/kernel_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numbers>
#include <optional>

#include "base/try.h"
#include "lanes/xla/chips.h"
#include "lanes/xla/kernel_call.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/kernels/worklist.h"
#include "lanes/xla/splash_tables.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "lanes/xla/xla.h"

namespace tessera::lanes::xla {
namespace {

using kernels::AttentionSpec;
using stablehlo::Compare;
using stablehlo::Element;
using stablehlo::Reduction;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<stablehlo::NamedType> InputsOf(const stablehlo::ProgramSpec& spec, Pass pass) {
  const Shape& s = spec.shape;
  const Element e = s.dtype == DType::kF32 ? Element::kF32 : Element::kBf16;
  std::vector<stablehlo::NamedType> inputs = {{"q", {e, {s.batch, s.num_q_heads, s.q_len, s.dim_qk}}},
                                              {"k", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}}},
                                              {"v", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}}},
                                              {"scale", {Element::kF32, {}}},
                                              {"part", {Element::kI32, {}}}};
  if (spec.has_softcap) inputs.push_back({"softcap", {Element::kF32, {}}});
  if (spec.has_sink_logits) inputs.push_back({"sink_logits", {Element::kF32, {s.num_q_heads}}});
  const auto add = [&](Direction direction) {
    for (stablehlo::NamedType& input : TableInputs(spec, direction)) inputs.push_back(std::move(input));
  };
  if (pass == Pass::kForward) {
    add(Direction::kForward);
    return inputs;
  }
  const std::vector<int64_t> stat = {s.batch, s.num_q_heads, s.q_len};
  inputs.push_back({"do", {e, {s.batch, s.num_q_heads, s.q_len, s.dim_v}}});
  inputs.push_back({"lse", {Element::kF32, stat}});
  inputs.push_back({"delta", {Element::kF32, stat}});
  for (const Direction direction : DirectionsOf(spec, pass)) add(direction);
  return inputs;
}

// Where chips share the pairs of batch rows and heads, their two axes are apart.
std::vector<stablehlo::NamedType> WithPairsApart(const stablehlo::ProgramSpec& spec,
                                                 std::vector<stablehlo::NamedType> inputs) {
  for (stablehlo::NamedType& input : inputs) {
    const bool is_flat = spec.chips > 1 && input.name.starts_with("mask_of_");
    if (is_flat) input.type.dims = {spec.shape.batch, spec.shape.num_q_heads};
  }
  return inputs;
}

std::string NameOf(const stablehlo::ProgramSpec& spec, Pass pass) {
  const std::string name = fmt::format("{}_{}", spec.band ? kXlaSplash : kXlaPallas, ToText(pass));
  if (spec.chips == 1) return name;
  return fmt::format("{}_{}_over_{}", name, spec.chips_share_heads ? "heads" : "rows", spec.chips);
}

class Lowerer {
 public:
  Lowerer(const stablehlo::ProgramSpec& spec, Pass pass)
      : spec_(spec),
        shape_(spec.shape),
        name_(NameOf(spec, pass)),
        inputs_(WithPairsApart(spec, InputsOf(spec, pass))),
        b_(stablehlo::BeginModule(spec, name_, inputs_)) {}

  Result<stablehlo::Program> Forward() {
    const AttentionSpec k = KernelSpecOf(spec_, Direction::kForward);
    Begin(k, Direction::kForward);
    Values operands = spec_.band ? SplashLists() : Scalars();
    if (k.has_sink_logits) operands.push_back(b_.Reshape(b_.Input("sink_logits"), {1, shape_.num_q_heads}));
    const Value q = Queries("q", shape_.dim_qk);
    Values keys;
    if (k.has_range) {
      keys.push_back(CleanKeys("k", LiveKeys()));
      keys.push_back(CleanValues());
      AddBounds(q, keys[1], operands);
    } else {
      AddKeys(keys);
    }
    operands.push_back(q);
    operands.insert(operands.end(), keys.begin(), keys.end());
    const int64_t pairs = shape_.batch * shape_.num_q_heads;
    const std::vector<int64_t> in_lanes = {pairs, k.q_tokens(), kernels::kLanes};
    const std::vector<int64_t> in_rows = {pairs, kernels::kSublanes, k.q_tokens()};
    if (spec_.band) {
      AddSegments(operands);
      AddNumbers(operands);
    } else {
      if (!k.has_range) operands.back() = Turned(operands.back());
      AddMask(operands);
    }
    std::vector<Type> types = {{k.is_wide ? Element::kF32 : ToHlo(k.element), {pairs, k.q_tokens(), shape_.dim_v}}};
    if (k.has_stats) types.push_back({Element::kF32, spec_.band ? in_lanes : in_rows});
    const Values results = TESSERA_TRY(Call(operands, types));
    const int64_t rows = pairs * k.list.rows;
    const Value o = Tokens(results[0], {rows, k.list.tile_q, shape_.dim_v}, spec_.Of(Direction::kForward).tile_q);
    const auto stat = [&](int64_t at) {
      std::vector<int64_t> begin = {0, 0, 0};
      std::vector<int64_t> end = spec_.band ? in_lanes : in_rows;
      const size_t axis = spec_.band ? 2 : 1;
      begin[axis] = at;
      end[axis] = at + 1;
      return Tokens(b_.Slice(results[1], begin, end), {rows, k.list.tile_q}, spec_.Of(Direction::kForward).tile_q);
    };
    if (spec_.band) return Finish({{"o", o}, {"lse", stat(0)}, {"tiles", SplashTiles()}});
    if (!k.has_stats) return Finish({{"o", o}, {"tiles", Tiles()}});
    return Finish({{"o", o}, {"lse", stat(0)}, {"max", stat(kernels::kSublanes / 2)}, {"tiles", Tiles()}});
  }

  // One kernel for dq, dk and dv, or one for dq and one for dk and dv. They give sums, as [dim, tokens]: dq of each
  // chunk of keys where it comes with the others, dk and dv of each call.
  Result<stablehlo::Program> Backward() {
    std::vector<std::pair<std::string, Value>> outputs;
    for (const Direction direction : DirectionsOf(spec_, Pass::kBackward)) {
      TESSERA_TRY(Gradients(direction, outputs));
    }
    if (spec_.has_sink_logits) outputs.emplace_back("dsink_logits", SinkShares(kernel_));
    outputs.emplace_back("tiles", Tiles());
    return Finish(outputs);
  }

  Result<stablehlo::Program> SplashBackward() {
    std::vector<std::pair<std::string, Value>> outputs;
    for (const Direction direction : {Direction::kDq, Direction::kDkv}) {
      const AttentionSpec k = KernelSpecOf(spec_, direction);
      const bool is_dkv = direction == Direction::kDkv;
      Begin(k, direction);
      See();
      Values operands = SplashLists();
      operands.push_back(Queries("q", shape_.dim_qk));
      AddKeys(operands);
      AddSegments(operands);
      operands.push_back(Stat(b_.Input("lse"), kInf));
      operands.push_back(Queries("do", shape_.dim_v));
      operands.push_back(Stat(b_.Input("delta"), 0));
      AddNumbers(operands);
      if (!is_dkv) {
        const int64_t pairs = shape_.batch * shape_.num_q_heads;
        const Values results = TESSERA_TRY(Call(operands, {{ToHlo(k.element), {pairs, k.q_tokens(), shape_.dim_qk}}}));
        const Value dq =
            Tokens(results[0], {pairs * k.list.rows, k.list.tile_q, shape_.dim_qk}, spec_.Of(direction).tile_q);
        // The stock kernel's is of the scaled q.
        outputs.emplace_back("dq", b_.Mul(dq, b_.Spread(b_.Input("scale"), dq.type.dims, {})));
        continue;
      }
      const int64_t heads = shape_.batch * shape_.num_kv_heads;
      const Values results = TESSERA_TRY(Call(operands, {{ToHlo(k.element), {heads, k.kv_tokens(), shape_.dim_qk}},
                                                         {ToHlo(k.element), {heads, k.kv_tokens(), shape_.dim_v}}}));
      const int64_t rows = heads * k.list.rows;
      const int64_t tile_kv = spec_.Of(direction).tile_kv;
      outputs.emplace_back("dk", Tokens(results[0], {rows, k.list.tile_kv, shape_.dim_qk}, tile_kv));
      outputs.emplace_back("dv", Tokens(results[1], {rows, k.list.tile_kv, shape_.dim_v}, tile_kv));
      outputs.emplace_back("tiles", SplashTiles());
    }
    return Finish(outputs);
  }

 private:
  void Begin(const AttentionSpec& kernel, Direction direction) {
    kernel_ = kernel;
    direction_ = direction;
  }
  Status Gradients(Direction direction, std::vector<std::pair<std::string, Value>>& outputs) {
    const AttentionSpec k = KernelSpecOf(spec_, direction);
    Begin(k, direction);
    See();
    Values operands = Scalars();
    const Value q = Queries("q", shape_.dim_qk);
    operands.push_back(q);
    AddKeys(operands);
    const Value dout = Queries("do", shape_.dim_v);
    operands.push_back(dout);
    if (k.gives.of_keys) {
      operands.push_back(Turned(q));
      operands.push_back(Turned(dout));
    }
    operands.push_back(Stat(stablehlo::LeanLse(b_, b_.Input("lse")), kInf));
    operands.push_back(Stat(b_.Input("delta"), 0));
    AddMask(operands);
    const int64_t pairs = shape_.batch * shape_.num_q_heads;
    const int64_t heads = shape_.batch * shape_.num_kv_heads;
    const int64_t parts = k.gives.of_keys ? k.chunks() : 1;
    std::vector<CallResult> given;
    if (k.gives.of_queries) given.push_back({{Element::kF32, {parts * pairs, shape_.dim_qk, k.q_tokens()}}, 2});
    if (k.gives.of_keys) {
      given.push_back({{Element::kF32, {heads, shape_.dim_qk, k.kv_tokens()}}, {}});
      given.push_back({{Element::kF32, {heads, shape_.dim_v, k.kv_tokens()}}, {}});
    }
    const Values results = TESSERA_TRY(CallEach(operands, given));
    const auto scaled = [&](const Value& x) { return b_.Mul(x, b_.Spread(b_.Input("scale"), x.type.dims, {})); };
    Value dq, dk;
    if (k.gives.of_queries) {
      const Value sums = b_.Reshape(results[0], {parts, pairs, shape_.dim_qk, k.q_tokens()});
      dq = Turned(parts == 1 ? b_.Reshape(sums, {pairs, shape_.dim_qk, k.q_tokens()})
                             : b_.Reduce(Reduction::kAdd, sums, {0}));
    }
    if (k.gives.of_keys) dk = Turned(results[results.size() - 2]);
    if (k.gives.of_queries) {
      const int64_t tile_q = spec_.Of(Direction::kDq).tile_q;
      outputs.emplace_back("dq", Tokens(scaled(dq), {pairs * k.list.rows, k.list.tile_q, shape_.dim_qk}, tile_q));
    }
    if (k.gives.of_keys) {
      outputs.emplace_back("dk", KeyRows(scaled(dk), heads));
      outputs.emplace_back("dv", KeyRows(Turned(results.back()), heads));
    }
    return {};
  }

  Value Table(std::string_view what) {
    const Value table = b_.Input(TableName(direction_, what));
    const bool is_apart = spec_.chips > 1 && what == "mask_of";
    return is_apart ? b_.Reshape(table, {shape_.batch * shape_.num_q_heads}) : table;
  }
  // Rows of a kernel's tiles as f32, cut to the plan's tile where the kernel's is longer.
  Value Tokens(const Value& result, const std::vector<int64_t>& dims, int64_t tile) {
    const Value rows = b_.Reshape(AsF32(result), dims);
    if (dims[1] == tile) return rows;
    const std::vector<int64_t> begin(dims.size(), 0);
    std::vector<int64_t> end = dims;
    end[1] = tile;
    return b_.Slice(rows, begin, end);
  }
  // Of [heads, tokens, dim], the rows of tiles that callers expect: the plan's of dK and dV.
  Value KeyRows(const Value& x, int64_t heads) {
    const stablehlo::ListShape& list = spec_.Of(Direction::kDkv);
    const int64_t dim = x.type.dims[2];
    const int64_t tokens = list.rows * list.tile_kv;
    const int64_t begin[] = {0, 0, 0};
    const int64_t end[] = {heads, std::min(tokens, x.type.dims[1]), dim};
    const Value kept = x.type.dims[1] > tokens ? b_.Slice(x, begin, end) : b_.PadEnd(x, {heads, tokens, dim});
    return b_.Reshape(kept, {heads * list.rows, list.tile_kv, dim});
  }
  // [n, tokens, dim] as [n, dim, tokens], and back.
  Value Turned(const Value& x) { return b_.Transpose(x, {0, 2, 1}); }
  // Rows that see nothing have no part in any gradient: their lse is +inf for kernels, and their tokens zero.
  void See() {
    const Value lse = b_.Input("lse");
    sees_ = b_.Is(Compare::kNe, lse, b_.Constant(lse.type, -kInf));
  }
  Value AsF32(const Value& x) { return x.type.element == Element::kF32 ? x : b_.Convert(x, Element::kF32); }

  Values Scalars() {
    Values operands;
    for (const mosaic::Memory& scalar : kernels::ScalarsOf(kernel_)) {
      const Value table = Table(scalar.name);
      const Element element = ToHlo(scalar.type.element);
      operands.push_back(element == Element::kI32 ? table : b_.Convert(table, element));
    }
    // In the order of ScoreField.
    const Value scale = b_.Input("scale");
    const Value factor = spec_.has_softcap ? b_.Input("softcap") : scale;
    const Value inner = spec_.has_softcap ? b_.Div(scale, factor) : b_.Constant(scale.type, 0);
    const Value exponent = b_.Mul(factor, b_.Constant(scale.type, std::numbers::log2e));
    Values numbers;
    for (const Value& number : {inner, exponent, factor}) numbers.push_back(b_.Reshape(number, {1, 1}));
    operands.push_back(b_.Concatenate(numbers, 1));
    return operands;
  }

  Value Queries(const char* name, int64_t dim) {
    Value x = b_.Input(name);
    if (direction_ != Direction::kForward) {
      const Value sees = b_.Spread(sees_, x.type.dims, {0, 1, 2});
      x = b_.Select(sees, x, b_.Constant(x.type, 0));
    }
    if (spec_.band && std::string_view(name) == "q") {
      const Value scale = b_.Convert(b_.Input("scale"), x.type.element);
      x = b_.Mul(x, b_.Spread(scale, x.type.dims, {}));
    }
    const int64_t pairs = shape_.batch * shape_.num_q_heads;
    return b_.PadEnd(b_.Reshape(x, {pairs, shape_.q_len, dim}), {pairs, kernel_.q_tokens(), dim});
  }

  // ---- of the stock Splash kernels

  Values SplashLists() {
    const mosaic::Element narrow = SplashSpecOf(spec_, direction_).data_next;
    const Value data_next = Table("data_next");
    const Value columns = narrow == mosaic::Element::kI32 ? data_next : b_.Convert(data_next, ToHlo(narrow));
    return {columns, b_.Convert(Table("block_mask"), Element::kI8)};
  }
  // Token numbers, or what is made of them, beside each other in lanes or under each other in sublanes.
  Value NumbersOf(int64_t tokens, bool in_lanes) {
    if (in_lanes) return b_.Iota({Element::kI32, {kernels::kSublanes, tokens}}, 1);
    return b_.Iota({Element::kI32, {tokens, kernels::kLanes}}, 0);
  }
  // Real tokens are of segment 0 and keys past the last of segment 1.
  void AddSegments(Values& operands) {
    if (!SplashSpecOf(spec_, direction_).has_segments) return;
    const bool is_dkv = direction_ == Direction::kDkv;
    const Value q = NumbersOf(kernel_.q_tokens(), is_dkv);
    operands.push_back(b_.Constant(q.type, 0));
    const Value kv = NumbersOf(kernel_.kv_tokens(), !is_dkv);
    const Value is_padding = b_.Is(Compare::kGe, kv, b_.Int(shape_.kv_len));
    operands.push_back(b_.Convert(is_padding, Element::kI32));
  }
  void AddNumbers(Values& operands) {
    if (!SplashSpecOf(spec_, direction_).mask.IsComputed()) return;
    operands.push_back(NumbersOf(kernel_.q_tokens(), direction_ == Direction::kDkv));
  }
  // Every (batch row, head) visits the same.
  Value SplashTiles() {
    const Value kinds = Table("block_mask");
    const Value visited = b_.Convert(b_.Is(Compare::kNe, kinds, b_.Int(0)), Element::kI32);
    const Value each = b_.Reduce(Reduction::kAdd, visited, {0, 1, 2});
    return b_.Mul(each, b_.Int(shape_.batch * shape_.num_q_heads));
  }

  // Keys that nobody sees become zero, so that a weight of zero times whatever they hold is zero.
  void AddKeys(Values& operands) {
    const Value live = LiveKeys();
    for (const char* name : {"k", "v"}) operands.push_back(CleanKeys(name, live));
  }
  Value LiveMarks() {
    const int64_t begin[] = {0, 0};
    const int64_t end[] = {shape_.batch, shape_.kv_len};
    return b_.Slice(Table("kv_live"), begin, end);
  }
  Value LiveKeys() {
    const Value marks = LiveMarks();
    return b_.Is(Compare::kNe, marks, b_.Int(0));
  }
  Value CleanKeys(const char* name, const Value& live) {
    const int64_t heads = shape_.batch * shape_.num_kv_heads;
    const Value x = b_.Input(name);
    const int64_t dim = x.type.dims[3];
    const Value is_live = b_.Spread(live, x.type.dims, {0, 2});
    const Value clean = b_.Select(is_live, x, b_.Constant(x.type, 0));
    return b_.PadEnd(b_.Reshape(clean, {heads, shape_.kv_len, dim}), {heads, kernel_.kv_tokens(), dim});
  }
  // Values as [heads, dim, tokens]. They ask the marks in another way than keys do: what two select by is laid out
  // once, and XLA would turn the keys with the values, and back.
  Value CleanValues() {
    const int64_t heads = shape_.batch * shape_.num_kv_heads;
    const Value x = b_.Transpose(b_.Input("v"), {0, 1, 3, 2});
    const Value marks = LiveMarks();
    const Value live = b_.Is(Compare::kGt, marks, b_.Int(0));
    const Value is_live = b_.Spread(live, x.type.dims, {0, 3});
    const Value clean = b_.Select(is_live, x, b_.Constant(x.type, 0));
    const int64_t dim = shape_.dim_v;
    return b_.PadEnd(b_.Reshape(clean, {heads, dim, shape_.kv_len}), {heads, dim, kernel_.kv_tokens()});
  }

  // No less than the largest square of a token's length in each tile: [n, 1, tiles]. Squares are bf16, and the matrix
  // unit adds them up: along a token it does so for next to nothing, where the vector unit would have to turn them.
  Value SquaresOf(const Value& x, int64_t tile) {
    const int64_t n = x.type.dims[0];
    const int64_t tokens = x.type.dims[1];
    const int64_t dim = x.type.dims[2];
    const Value squares = b_.Reshape(b_.Mul(x, x), {n * tokens, dim});
    const Value ones = b_.Constant({x.type.element, {dim, kernels::kLanes}}, 1);
    const Value sums = b_.Reshape(b_.Dot(squares, ones, {1, 0}), {n, tokens / tile, tile, kernels::kLanes});
    const Value most = b_.Reduce(Reduction::kMax, sums, {2});
    const int64_t begin[] = {0, 0, 0};
    const int64_t end[] = {n, tokens / tile, 1};
    const Value bound = b_.Reshape(b_.Slice(most, begin, end), {n, 1, tokens / tile});
    return b_.Mul(bound, b_.Constant(bound.type, kernels::kSquareSlack));
  }
  // What tells whether a tile's scores are in range (kernels/attention.h).
  void AddBounds(const Value& q, const Value& values, Values& operands) {
    const Value scale = b_.Input("scale");
    const Value of_queries = SquaresOf(q, kernel_.list.tile_q);
    operands.push_back(b_.Mul(of_queries, b_.Spread(b_.Mul(scale, scale), of_queries.type.dims, {})));
    const Value v = AsF32(values);
    const auto number = [&](double value) { return b_.Constant(v.type, value); };
    const Value size = b_.Max(v, b_.Neg(v));
    const Value is_large = b_.Is(Compare::kGe, size, number(kernels::kLeastValueInRange));
    const Value is_small = b_.Is(Compare::kLe, size, number(kernels::kMostValueInRange));
    const Value zero = number(0);
    const Value is_zero = b_.Is(Compare::kEq, v, zero);
    const Value is_in_range = b_.Or(b_.And(is_large, is_small), is_zero);
    const Value beyond = b_.Select(is_in_range, zero, number(kInf));
    // Of keys as they come: where one is not clean, nobody sees the whole tile, and no bound of it is asked for.
    const int64_t heads = shape_.batch * shape_.num_kv_heads;
    const Value as_given = b_.Reshape(b_.Input("k"), {heads, shape_.kv_len, shape_.dim_qk});
    const Value k = b_.PadEnd(as_given, {heads, kernel_.kv_tokens(), shape_.dim_qk});
    const Value of_keys = SquaresOf(k, kernel_.list.tile_kv);
    const Value of_tokens = b_.Reduce(Reduction::kMax, beyond, {1});
    const int64_t tiles = kernel_.kv_tokens() / kernel_.list.tile_kv;
    const Value by_tile = b_.Reshape(of_tokens, {v.type.dims[0], tiles, kernel_.list.tile_kv});
    const Value of_values = b_.Reshape(b_.Reduce(Reduction::kMax, by_tile, {2}), of_keys.type.dims);
    operands.push_back(b_.Add(of_keys, of_values));
  }

  // Zeros past the last token: the worklists' bounds keep them from mattering.
  Value Stat(const Value& x, double unseen) {
    const bool is_spread = direction_ == Direction::kDkv || !spec_.band;
    const Value clean = b_.Select(sees_, x, b_.Constant(x.type, unseen));
    const int64_t pairs = shape_.batch * shape_.num_q_heads;
    const Value padded = b_.PadEnd(b_.Reshape(clean, {pairs, shape_.q_len}), {pairs, kernel_.q_tokens()});
    return b_.Spread(padded, {pairs, is_spread ? kernels::kSublanes : 1, kernel_.q_tokens()}, {0, 2});
  }

  void AddMask(Values& operands) {
    if (kernel_.has_documents) {
      operands.push_back(Table("q_documents"));
      operands.push_back(Table("kv_documents"));
    }
    if (kernel_.stored_tiles > 0) operands.push_back(b_.Convert(Table("stored"), Element::kI8));
  }

  Result<Values> Call(const Values& operands, const std::vector<Type>& results) {
    if (!spec_.band) {
      std::vector<CallResult> of_calls;
      for (const Type& type : results) of_calls.push_back({type, 1});
      if (kernel_.has_stats) of_calls.back().axis = of_calls.back().type.dims.size() - 1;  // along the lanes
      return CallEach(operands, of_calls);
    }
    const mosaic::Module module = TESSERA_TRY(KernelOf(spec_, direction_));
    std::vector<Type> types;
    {
      for (std::vector<int64_t>& dims : SplashRunningDims(SplashSpecOf(spec_, direction_), direction_)) {
        types.push_back({Element::kF32, std::move(dims)});
      }
    }
    const auto num_running = static_cast<int64_t>(types.size());
    types.insert(types.end(), results.begin(), results.end());
    Values all = TESSERA_TRY(CallWith(module, operands, types));
    all.erase(all.begin(), all.begin() + num_running);
    return all;
  }

  // A result of several calls: tokens along an axis are one call's after the other's; without one it is added up.
  struct CallResult {
    Type type;
    std::optional<size_t> axis;
  };
  // A call for each range of rows.
  Result<Values> CallEach(const Values& operands, const std::vector<CallResult>& results) {
    const std::vector<std::string> names = OperandOrder(kernel_, direction_);
    const int64_t tile = kernel_.list.tile_q;
    std::vector<Values> parts(results.size());
    for (const CallRows& rows : CallsOf(spec_, direction_)) {
      Values own;
      for (size_t i = 0; i < operands.size(); ++i) own.push_back(OfCall(operands[i], names[i], rows, tile));
      std::vector<Type> types;
      for (const CallResult& result : results) {
        types.push_back(result.type);
        if (result.axis) types.back().dims[*result.axis] = (rows.end - rows.begin) * tile;
      }
      const mosaic::Module module = TESSERA_TRY(KernelOf(CallSpecOf(spec_, direction_, rows), direction_));
      const Values given = TESSERA_TRY(CallWith(module, own, types));
      for (size_t i = 0; i < given.size(); ++i) parts[i].push_back(given[i]);
    }
    Values whole;
    for (size_t i = 0; i < parts.size(); ++i) {
      Value all = parts[i][0];
      if (results[i].axis) {
        all = b_.Concatenate(parts[i], static_cast<int64_t>(*results[i].axis));
      } else {
        for (size_t call = 1; call < parts[i].size(); ++call) all = b_.Add(all, parts[i][call]);
      }
      whole.push_back(all);
    }
    return whole;
  }

  Value OfCall(const Value& x, std::string_view name, const CallRows& rows, int64_t tile) {
    const OperandShare how = ShareOf(name);
    const bool is_all = rows.begin == 0 && rows.end == kernel_.list.rows;
    if (is_all || how.share == Share::kWhole) return x;
    if (how.share == Share::kValid) return b_.Sub(x, b_.Constant(x.type, static_cast<double>(rows.begin * tile)));
    const bool is_list = how.share == Share::kRows || how.share == Share::kRowNumbers;
    const int64_t each = is_list ? stablehlo::NumElements(x.type) / (kernel_.masks * kernel_.list.rows) : 1;
    const Value from = is_list ? b_.Reshape(x, {kernel_.masks, kernel_.list.rows, each}) : x;
    const size_t axis = is_list ? 1 : how.axis;
    std::vector<int64_t> begin(from.type.dims.size(), 0);
    std::vector<int64_t> end = from.type.dims;
    const int64_t unit = is_list || how.share == Share::kTiles ? 1 : tile;
    begin[axis] = rows.begin * unit;
    end[axis] = rows.end * unit;
    const Value part = b_.Slice(from, begin, end);
    const int64_t of_call = kernel_.masks * (rows.end - rows.begin);
    if (how.share == Share::kRowNumbers) return b_.Reshape(part, {of_call * each});
    return is_list ? b_.Reshape(part, {of_call, each}) : part;
  }

  Result<Values> CallWith(const mosaic::Module& module, const Values& operands, const std::vector<Type>& results) {
    return CallKernel(b_, module, operands, results, {spec_.vector_bytes, spec_.scalar_bytes});
  }

  // Of the plan, counted here from the tables: visited slots of each mask, for every pair that has it.
  Value Tiles() {
    const Value visited = b_.Convert(b_.Is(Compare::kNe, Table("kinds"), b_.Int(0)), Element::kI32);
    const int64_t cells = kernel_.list.rows * kernel_.list.width;
    const Value of_mask = b_.Reduce(Reduction::kAdd, b_.Reshape(visited, {kernel_.masks, cells}), {1});
    const std::vector<int64_t> dims = {shape_.batch * shape_.num_q_heads, kernel_.masks};
    const Value own = b_.Spread(Table("mask_of"), dims, {0});
    const Value is_own = b_.Is(Compare::kEq, own, b_.Iota({Element::kI32, dims}, 1));
    const Value owns = b_.Convert(is_own, Element::kI32);
    const Value counts = b_.Mul(owns, b_.Spread(of_mask, dims, {1}));
    return b_.Reduce(Reduction::kAdd, counts, {0, 1});
  }

  // -weight * delta of the sink, over rows that have keys, a number for each row of tiles.
  Value SinkShares(const AttentionSpec& k) {
    const Value lse = b_.Input("lse");
    const Value sink = b_.Spread(b_.Input("sink_logits"), lse.type.dims, {1});
    const Value lean = stablehlo::LeanLse(b_, lse);
    const Value safe = b_.Select(sees_, lean, b_.Constant(lse.type, 0));
    const Value share = b_.Neg(b_.Mul(stablehlo::Weight(b_, b_.Sub(sink, safe)), b_.Input("delta")));
    const Value clean = b_.Select(sees_, share, b_.Constant(share.type, 0));
    const int64_t pairs = shape_.batch * shape_.num_q_heads;
    const Value padded = b_.PadEnd(b_.Reshape(clean, {pairs, shape_.q_len}), {pairs, k.q_tokens()});
    return b_.Reduce(Reduction::kAdd, b_.Reshape(padded, {pairs * k.list.rows, k.list.tile_q}), {1});
  }

  Result<stablehlo::Program> Finish(const std::vector<std::pair<std::string, Value>>& named) {
    if (spec_.chips > 1) return FinishOver(named);
    Values values;
    std::vector<stablehlo::NamedType> outputs;
    for (const auto& [name, value] : named) {
      values.push_back(value);
      outputs.push_back({name, value.type});
    }
    return b_.Finish(values).map([&](std::string text) {
      return stablehlo::Program{stablehlo::ModuleName(name_, spec_.class_key), std::move(text), inputs_,
                                std::move(outputs), 1};
    });
  }

  // Inputs and outputs are those of all chips; rows of tiles are [batch, heads * rows, ...], and each chip counts its
  // own tiles.
  Result<stablehlo::Program> FinishOver(const std::vector<std::pair<std::string, Value>>& named) {
    stablehlo::DeviceAxis chips{.name = "chip", .size = spec_.chips};
    std::vector<stablehlo::NamedType> inputs = inputs_;
    for (stablehlo::NamedType& input : inputs) {
      chips.inputs.push_back(ChipAxis(spec_, input.name));
      input.type = stablehlo::WholeType(input.type, chips.inputs.back(), chips.size);
    }
    Values values;
    std::vector<stablehlo::NamedType> outputs;
    for (const auto& [name, value] : named) {
      const bool is_count = name == "tiles";
      std::vector<int64_t> dims = {1};
      if (!is_count) {
        dims = value.type.dims;
        dims[0] /= shape_.batch;
        dims.insert(dims.begin(), shape_.batch);
      }
      values.push_back(b_.Reshape(value, dims));
      chips.outputs.push_back(!is_count && spec_.chips_share_heads ? 1 : 0);
      outputs.push_back({name, stablehlo::WholeType(values.back().type, chips.outputs.back(), chips.size)});
    }
    return b_.FinishOver(chips, values).map([&](std::string text) {
      return stablehlo::Program{stablehlo::ModuleName(name_, spec_.class_key), std::move(text), std::move(inputs),
                                std::move(outputs), 1};
    });
  }

  const stablehlo::ProgramSpec& spec_;
  const Shape& shape_;
  const std::string name_;
  std::vector<stablehlo::NamedType> inputs_;
  stablehlo::Builder b_;
  AttentionSpec kernel_;
  Direction direction_ = Direction::kForward;
  Value sees_;
};

}  // namespace

Result<stablehlo::Program> LowerKernels(const stablehlo::ProgramSpec& spec, Pass pass) {
  Lowerer lowerer(spec, pass);
  if (pass == Pass::kForward) return lowerer.Forward();
  return spec.band ? lowerer.SplashBackward() : lowerer.Backward();
}

}  // namespace tessera::lanes::xla
