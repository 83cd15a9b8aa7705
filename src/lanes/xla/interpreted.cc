// See interpreted.h.
#include "lanes/xla/interpreted.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <optional>

#include "base/math.h"
#include "base/tensor_row.h"
#include "base/try.h"
#include "lanes/check_args.h"
#include "lanes/weights.h"
#include "lanes/xla/interpreted_arrays.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/kernels/splash_parts.h"
#include "lanes/xla/kernels/worklist.h"
#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/mosaic/parse.h"
#include "lanes/xla/mosaic/print.h"
#include "lanes/xla/range_bounds.h"
#include "lanes/xla/splash_tables.h"
#include "lanes/xla/transfer.h"

namespace tessera::lanes::xla {
namespace {

using kernels::AttentionSpec;

constexpr float kInf = std::numeric_limits<float>::infinity();

// One kernel of the class on one plan.
class Kernel {
 public:
  static Result<Kernel> Make(const stablehlo::ProgramSpec& spec, const PlanView& plan, Direction direction) {
    Kernel kernel;
    kernel.direction_ = direction;
    for (const CallRows& rows : CallsOf(spec, direction)) {
      const mosaic::Module built =
          TESSERA_TRY(spec.band ? KernelOf(spec, direction) : KernelOf(CallSpecOf(spec, direction, rows), direction));
      kernel.calls_.push_back({rows, TESSERA_TRY(mosaic::Parse(mosaic::Print(built)))});
    }
    kernel.spec_ = KernelSpecOf(spec, direction);
    const AttentionSpec& k = kernel.spec_;
    const PlanTables tables = KernelTables(spec, plan, TableInputs(spec, direction));
    const auto table = [&](std::string_view name) -> const std::vector<int32_t>& {
      return tables.at(TableName(direction, name));
    };
    kernel.live_ = table("kv_live");
    if (spec.band) {
      kernel.MakeSplash(SplashSpecOf(spec, direction), direction, tables);
      return kernel;
    }
    kernel.order_ = OperandOrder(k, direction);
    for (const mosaic::Memory& scalar : kernels::ScalarsOf(k)) {
      kernel.constants_[scalar.name] = Narrowed(table(scalar.name), scalar.type.element, scalar.type.dims);
    }
    const auto add = [&](const char* name, mosaic::Element element, std::vector<int64_t> dims) {
      kernel.constants_[name] = Narrowed(table(name), element, std::move(dims));
    };
    if (k.has_documents) {
      add("q_documents", mosaic::Element::kI32, {k.batch, kernels::kSublanes, k.q_tokens()});
      add("kv_documents", mosaic::Element::kI32, {k.batch, kernels::kSublanes, k.kv_tokens()});
    }
    if (k.stored_tiles > 0) add("stored", mosaic::Element::kI8, {k.stored_tiles, k.list.tile_kv, k.list.tile_q});
    return kernel;
  }

  const AttentionSpec& spec() const { return spec_; }

  // [batch * heads, tokens, dim] of a tensor; what `keeps` refuses, and past the last token, is zero.
  template <class Keeps>
  Array Tokens(const TensorRef& ref, const TensorAxes& axes, int64_t tokens, const Keeps& keeps) const {
    Array array(spec_.element, {axes[0] * axes[1], tokens, axes[3]});
    const auto row_bytes = static_cast<size_t>(axes[3] * BytesOf(ref.type));
    for (int64_t pair = 0; pair < axes[0] * axes[1]; ++pair) {
      for (int64_t t = 0; t < axes[2]; ++t) {
        if (!keeps(pair, t)) continue;
        std::memcpy(array.bytes.data() + static_cast<size_t>(pair * tokens + t) * row_bytes,
                    RowAt(ref, pair / axes[1], pair % axes[1], t), row_bytes);
      }
    }
    return array;
  }
  Array Keys(const TensorRef& ref, int64_t dim) const {
    const TensorAxes axes = {spec_.batch, spec_.num_kv_heads, spec_.kv_len, dim};
    return Tokens(ref, axes, spec_.kv_tokens(), [&](int64_t pair, int64_t t) {
      return live_[static_cast<size_t>(pair / spec_.num_kv_heads * spec_.kv_tokens() + t)] != 0;
    });
  }

  // A result and the axis of its tokens, which calls share; without one it is f32, and added up over the calls.
  struct Wanted {
    mosaic::ArrayType type;
    std::optional<size_t> axis;
  };
  Result<std::vector<Array>> Run(const Arrays& call, std::span<const Wanted> results) const {
    std::vector<const Array*> operands;
    for (const std::string& name : order_) {
      const auto constant = constants_.find(name);
      operands.push_back(constant != constants_.end() ? &constant->second : &call.find(name)->second);
    }
    if (calls_.size() == 1) {
      std::vector<mosaic::ArrayView> views;
      for (const Array* operand : operands) views.push_back(operand->view());
      std::vector<mosaic::ArrayType> types = running_;
      for (const Wanted& result : results) types.push_back(result.type);
      mosaic::Interpreted ran = TESSERA_TRY(mosaic::Interpret(calls_[0].module, views, types));
      std::vector<Array> whole;
      for (size_t i = 0; i < results.size(); ++i) {
        whole.emplace_back();
        whole.back().type = results[i].type;
        whole.back().bytes = std::move(ran.results[running_.size() + i]);
      }
      return whole;
    }
    return RunCalls(operands, results);
  }

 private:
  // Of [outer, axis, inner], the part [begin, end) of the axis.
  static Array PartOf(const Array& from, size_t axis, int64_t begin, int64_t end) {
    std::vector<int64_t> dims = from.type.dims;
    int64_t outer = 1;
    for (size_t i = 0; i < axis; ++i) outer *= dims[i];
    const auto row = from.bytes.size() / static_cast<size_t>(outer * dims[axis]);
    const auto whole = static_cast<size_t>(dims[axis]) * row;
    dims[axis] = end - begin;
    Array part(from.type.element, dims);
    const auto bytes = static_cast<size_t>(end - begin) * row;
    for (int64_t o = 0; o < outer; ++o) {
      std::memcpy(part.bytes.data() + static_cast<size_t>(o) * bytes,
                  from.bytes.data() + static_cast<size_t>(o) * whole + static_cast<size_t>(begin) * row, bytes);
    }
    return part;
  }

  Array OfCall(const Array& from, std::string_view name, const CallRows& rows) const {
    const OperandShare how = ShareOf(name);
    const int64_t tile = spec_.list.tile_q;
    Array array = from;
    switch (how.share) {
      case Share::kWhole:
        break;
      case Share::kRows:
      case Share::kRowNumbers: {
        int64_t each = 1;
        for (const int64_t dim : array.type.dims) each *= dim;
        each /= spec_.masks * spec_.list.rows;
        array.type.dims = {spec_.masks, spec_.list.rows, each};
        array = PartOf(array, 1, rows.begin, rows.end);
        const int64_t own = spec_.masks * (rows.end - rows.begin);
        array.type.dims = how.share == Share::kRows ? std::vector{own, each} : std::vector{own * each};
        break;
      }
      case Share::kTokens:
        array = PartOf(array, how.axis, rows.begin * tile, rows.end * tile);
        break;
      case Share::kTiles:
        array = PartOf(array, how.axis, rows.begin, rows.end);
        break;
      case Share::kValid:
        for (size_t i = 0; i < array.bytes.size() / 4; ++i) {
          array.ints()[i] -= static_cast<int32_t>(rows.begin * tile);
        }
        break;
    }
    return array;
  }

  // Each call on its range of rows.
  Result<std::vector<Array>> RunCalls(const std::vector<const Array*>& operands,
                                      std::span<const Wanted> results) const {
    std::vector<Array> whole;
    for (const Wanted& result : results) whole.emplace_back(result.type.element, result.type.dims);
    for (const Call& call : calls_) {
      std::vector<Array> own;
      for (size_t i = 0; i < operands.size(); ++i) own.push_back(OfCall(*operands[i], order_[i], call.rows));
      std::vector<mosaic::ArrayView> views;
      for (const Array& array : own) views.push_back(array.view());
      std::vector<mosaic::ArrayType> types;
      for (const Wanted& result : results) {
        types.push_back(result.type);
        if (result.axis) types.back().dims[*result.axis] = (call.rows.end - call.rows.begin) * spec_.list.tile_q;
      }
      const mosaic::Interpreted ran = TESSERA_TRY(mosaic::Interpret(call.module, views, types));
      for (size_t i = 0; i < whole.size(); ++i) {
        if (results[i].axis) {
          PutPart(ran.results[i], *results[i].axis, call.rows, whole[i]);
        } else {
          const auto* part = reinterpret_cast<const float*>(ran.results[i].data());
          for (size_t at = 0; at < whole[i].bytes.size() / 4; ++at) whole[i].floats()[at] += part[at];
        }
      }
    }
    return whole;
  }

  // The other way round: a call's tokens along an axis of the whole.
  void PutPart(std::span<const std::byte> part, size_t axis, const CallRows& rows, Array& whole) const {
    size_t outer = 1;
    for (size_t i = 0; i < axis; ++i) outer *= static_cast<size_t>(whole.type.dims[i]);
    const size_t stride = whole.bytes.size() / outer;
    const size_t bytes = part.size() / outer;
    const size_t token = stride / static_cast<size_t>(whole.type.dims[axis]);
    const size_t first = token * static_cast<size_t>(rows.begin * spec_.list.tile_q);
    for (size_t o = 0; o < outer; ++o) {
      std::memcpy(whole.bytes.data() + o * stride + first, part.data() + o * bytes, bytes);
    }
  }

  // Token numbers, or whether they are past the last key, as the stock kernels lay them out.
  static Array Numbers(int64_t tokens, bool in_lanes, const std::function<int32_t(int64_t)>& number) {
    std::vector<int32_t> values;
    for (int64_t t = 0; t < tokens; ++t) values.push_back(number(t));
    Array array = Spread(values, 1, tokens, !in_lanes);
    array.type.dims.erase(array.type.dims.begin());
    return array;
  }

  void MakeSplash(const kernels::SplashSpec& splash, Direction direction, const PlanTables& tables) {
    const bool is_dkv = direction == Direction::kDkv;
    const std::vector<int64_t> list = is_dkv ? std::vector<int64_t>{1, splash.grid_width, spec_.list.rows}
                                             : std::vector<int64_t>{1, spec_.list.rows, splash.grid_width};
    constants_["data_next"] = Narrowed(tables.at(TableName(direction, "data_next")), splash.data_next, list);
    constants_["block_mask"] = Narrowed(tables.at(TableName(direction, "block_mask")), splash.block_mask, list);
    order_ = {"data_next", "block_mask", "q", "k", "v"};
    if (splash.has_segments) {
      constants_["q_segments"] = Numbers(splash.q_len, is_dkv, [](int64_t) { return 0; });
      constants_["kv_segments"] = Numbers(splash.kv_len, !is_dkv, [&](int64_t t) { return t < spec_.kv_len ? 0 : 1; });
      order_.insert(order_.end(), {"q_segments", "kv_segments"});
    }
    if (direction != Direction::kForward) order_.insert(order_.end(), {"lse", "do", "delta"});
    if (splash.mask.IsComputed()) {
      constants_["q_sequence"] = Numbers(splash.q_len, is_dkv, [](int64_t t) { return static_cast<int32_t>(t); });
      order_.emplace_back("q_sequence");
    }
    for (std::vector<int64_t>& dims : SplashRunningDims(splash, direction)) {
      running_.push_back({mosaic::Element::kF32, std::move(dims)});
    }
  }

  struct Call {
    CallRows rows;
    mosaic::Module module;
  };
  std::vector<Call> calls_;
  Direction direction_ = Direction::kForward;
  AttentionSpec spec_;
  std::vector<mosaic::ArrayType> running_;  // results that come before a stock kernel's own
  Arrays constants_;
  std::vector<std::string> order_;
  std::vector<int32_t> live_;
};

// Puts [batch * heads, tokens, dim] of a kernel's result into a tensor of any type.
void Place(std::span<const std::byte> from, mosaic::Element element, int64_t tokens, const TensorRef& into,
           const TensorAxes& axes) {
  const ElementType type = element == mosaic::Element::kF32 ? ElementType::kF32 : ElementType::kBf16;
  const int64_t dim = axes[3];
  for (int64_t pair = 0; pair < axes[0] * axes[1]; ++pair) {
    for (int64_t t = 0; t < axes[2]; ++t) {
      const std::byte* row = from.data() + (pair * tokens + t) * dim * BytesOf(type);
      std::byte* to = RowAt(into, pair / axes[1], pair % axes[1], t);
      if (into.type == type) {
        std::memcpy(to, row, static_cast<size_t>(dim * BytesOf(type)));
        continue;
      }
      for (int64_t d = 0; d < dim; ++d) {
        const float value = ScalarAt(row, type, d);
        const uint16_t bits = into.type == ElementType::kBf16 ? F32ToBf16(value) : F32ToF16(value);
        if (into.type == ElementType::kF32) std::memcpy(to + d * 4, &value, 4);
        if (into.type != ElementType::kF32) std::memcpy(to + d * 2, &bits, 2);
      }
    }
  }
}

class BoundInterpreted final : public BoundLane {
 public:
  BoundInterpreted(const Lowering& lowering, const BindRequest& request, int64_t threads)
      : lowering_(lowering), lane_(lowering.name), contract_(request.contract), threads_(threads) {
    kernel_ = fmt::format("{}_{}", lane_, ToText(contract_.shape.dtype));
    device_ = HostDevice();
    device_.kind = "interpreter";
  }

  Status Add(const stablehlo::ProgramSpec& spec, const PlanView& plan, Pass pass) {
    for (const Direction direction : DirectionsOf(spec, pass)) {
      kernels_.emplace(direction, TESSERA_TRY(Kernel::Make(spec, plan, direction)));
      const Worklist& list = plan.Of(WalkOf(spec, direction));
      int64_t& tiles = tiles_[direction];
      for (const uint32_t mask : plan.mask_of) {
        tiles += static_cast<int64_t>(list.row_offsets[(mask + 1) * list.rows_per_mask] -
                                      list.row_offsets[mask * list.rows_per_mask]);
      }
    }
    return {};
  }

  int64_t WorkspaceBytes(Pass pass) const override {
    const Shape& s = contract_.shape;
    return pass == Pass::kForward
               ? 0
               : RoundUp(s.batch * s.num_q_heads * s.q_len * 4, static_cast<int64_t>(kWorkspaceAlignment));
  }

  Result<int64_t> Forward(const ForwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckForward(CheckOf(Pass::kForward), args, call));
    TESSERA_TRY(CheckStatistics(lowering_, kernels_.at(Direction::kForward).spec().has_stats, args));
    const Shape& s = contract_.shape;
    const Kernel& kernel = kernels_.at(Direction::kForward);
    const AttentionSpec& k = kernel.spec();
    Arrays arrays = Common(kernel, args.k, args.v);
    const auto all = [](int64_t, int64_t) { return true; };
    arrays["q"] = Scaled(kernel.Tokens(args.q, Queries(s.dim_qk), k.q_tokens(), all));
    if (k.has_range) AddBounds(k, arrays);
    if (k.has_sink_logits) {
      Array sinks(mosaic::Element::kF32, {1, s.num_q_heads});
      std::copy(args.sink_logits.begin(), args.sink_logits.end(), sinks.floats());
      arrays["sink_logits"] = std::move(sinks);
    }
    const int64_t pairs = s.batch * s.num_q_heads;
    const bool is_stock = lowering_.has_band;
    const std::vector<int64_t> in_lanes = {pairs, k.q_tokens(), kernels::kLanes};
    const std::vector<int64_t> in_rows = {pairs, kernels::kSublanes, k.q_tokens()};
    if (!is_stock) arrays["v"] = Turned(arrays["v"]);
    const Kernel::Wanted wanted[] = {{{k.element, {pairs, k.q_tokens(), s.dim_v}}, 1},
                                     {{mosaic::Element::kF32, is_stock ? in_lanes : in_rows}, is_stock ? 1 : 2}};
    const std::vector<Array> results = TESSERA_TRY(kernel.Run(arrays, std::span(wanted).first(k.has_stats ? 2 : 1)));
    Place(results[0].bytes, k.element, k.q_tokens(), args.o, Queries(s.dim_v));
    if (!k.has_stats) return tiles_.at(Direction::kForward);
    const Array stats = is_stock ? results[1] : Turned(results[1]);
    const int64_t numbers = stats.type.dims[2];
    const auto* numbers_of = reinterpret_cast<const float*>(stats.bytes.data());
    for (int64_t row = 0; row < pairs * s.q_len; ++row) {
      const float* at = numbers_of + (row / s.q_len * k.q_tokens() + row % s.q_len) * numbers;
      if (!args.lse.empty()) args.lse[static_cast<size_t>(row)] = at[0];
      if (!args.row_max.empty()) args.row_max[static_cast<size_t>(row)] = at[numbers / 2];
    }
    return tiles_.at(Direction::kForward);
  }

  Result<int64_t> Backward(const BackwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckBackward(CheckOf(Pass::kBackward), args, call));
    const Shape& s = contract_.shape;
    std::span<const float> delta = args.delta;
    if (delta.empty()) {
      const std::span<float> sums(reinterpret_cast<float*>(call.workspace.data()), args.lse.size());
      FillDelta({args.o, args.dout, args.lse, Queries(s.dim_v)}, threads_, sums);
      delta = sums;
    }
    if (lowering_.has_band) {
      TESSERA_TRY(StockBackward(args, delta));
    } else {
      TESSERA_TRY(OwnBackward(args, delta));
    }
    AddSinks(args, delta);
    return tiles_.at(lowering_.has_band ? Direction::kDkv : Direction::kDq);
  }

  Facts Describe() const override { return {kernel_, "pjrt", device_, {}}; }

 private:
  // Rows that see nothing have no part in any gradient, whatever they hold.
  auto SeesOf(const BackwardArgs& args) const {
    return [lse = args.lse, q_len = contract_.shape.q_len](int64_t pair, int64_t t) {
      return lse[static_cast<size_t>(pair * q_len + t)] != -kInf;
    };
  }

  Status StockBackward(const BackwardArgs& args, std::span<const float> delta) const {
    const Shape& s = contract_.shape;
    const int64_t pairs = s.batch * s.num_q_heads;
    const auto sees = SeesOf(args);
    for (const Direction direction : {Direction::kDq, Direction::kDkv}) {
      const Kernel& kernel = kernels_.at(direction);
      const AttentionSpec& k = kernel.spec();
      const bool is_dkv = direction == Direction::kDkv;
      Arrays arrays = Common(kernel, args.k, args.v);
      arrays["q"] = Scaled(kernel.Tokens(args.q, Queries(s.dim_qk), k.q_tokens(), sees));
      arrays["do"] = kernel.Tokens(args.dout, Queries(s.dim_v), k.q_tokens(), sees);
      arrays["lse"] = Stat(args.lse, k, is_dkv, kInf, sees);
      arrays["delta"] = Stat(delta, k, is_dkv, 0.0F, sees);
      if (!is_dkv) {
        const Kernel::Wanted wanted[] = {{{k.element, {pairs, k.q_tokens(), s.dim_qk}}, 1}};
        std::vector<Array> results = TESSERA_TRY(kernel.Run(arrays, wanted));
        Scale(results[0].bytes);
        Place(results[0].bytes, k.element, k.q_tokens(), args.dq, Queries(s.dim_qk));
        continue;
      }
      const int64_t heads = s.batch * s.num_kv_heads;
      const Kernel::Wanted wanted[] = {{{k.element, {heads, k.kv_tokens(), s.dim_qk}}, {}},
                                       {{k.element, {heads, k.kv_tokens(), s.dim_v}}, {}}};
      const std::vector<Array> results = TESSERA_TRY(kernel.Run(arrays, wanted));
      Place(results[0].bytes, k.element, k.kv_tokens(), args.dk, Keys(s.dim_qk));
      Place(results[1].bytes, k.element, k.kv_tokens(), args.dv, Keys(s.dim_v));
    }
    return {};
  }

  // The kernels give sums as [dim, tokens]; one for all gives dq for each chunk of keys.
  Status OwnBackward(const BackwardArgs& args, std::span<const float> delta) const {
    for (const auto& [direction, kernel] : kernels_) {
      if (direction != Direction::kForward) TESSERA_TRY(OwnGradients(kernel, args, delta));
    }
    return {};
  }

  Status OwnGradients(const Kernel& kernel, const BackwardArgs& args, std::span<const float> delta) const {
    const Shape& s = contract_.shape;
    const AttentionSpec& k = kernel.spec();
    const int64_t pairs = s.batch * s.num_q_heads;
    const int64_t heads = s.batch * s.num_kv_heads;
    const auto sees = SeesOf(args);
    std::vector<float> lean(args.lse.begin(), args.lse.end());
    for (float& lse : lean) lse = static_cast<float>(LeanLse(lse));
    Arrays arrays = Common(kernel, args.k, args.v);
    arrays["q"] = kernel.Tokens(args.q, Queries(s.dim_qk), k.q_tokens(), sees);
    arrays["do"] = kernel.Tokens(args.dout, Queries(s.dim_v), k.q_tokens(), sees);
    if (k.gives.of_keys) {
      arrays["q_lanes"] = Turned(arrays["q"]);
      arrays["do_lanes"] = Turned(arrays["do"]);
    }
    arrays["lse"] = Stat(lean, k, true, kInf, sees);
    arrays["delta"] = Stat(delta, k, true, 0.0F, sees);
    const int64_t parts = k.gives.of_keys ? k.chunks() : 1;
    std::vector<Kernel::Wanted> wanted;
    if (k.gives.of_queries) wanted.push_back({{mosaic::Element::kF32, {parts * pairs, s.dim_qk, k.q_tokens()}}, 2});
    if (k.gives.of_keys) {
      wanted.push_back({{mosaic::Element::kF32, {heads, s.dim_qk, k.kv_tokens()}}, {}});
      wanted.push_back({{mosaic::Element::kF32, {heads, s.dim_v, k.kv_tokens()}}, {}});
    }
    std::vector<Array> results = TESSERA_TRY(kernel.Run(arrays, wanted));
    const auto scale = static_cast<float>(contract_.score.scale);
    const auto put = [&](const Array& sums, int64_t tokens, const TensorRef& into, const TensorAxes& axes) {
      Place(Turned(sums).bytes, mosaic::Element::kF32, tokens, into, axes);
    };
    if (k.gives.of_queries) {
      Array dq(mosaic::Element::kF32, {pairs, s.dim_qk, k.q_tokens()});
      const size_t count = dq.bytes.size() / 4;
      for (int64_t part = 0; part < parts; ++part) {
        const float* sums = results[0].floats() + static_cast<size_t>(part) * count;
        for (size_t i = 0; i < count; ++i) dq.floats()[i] += sums[i];
      }
      for (size_t i = 0; i < count; ++i) dq.floats()[i] *= scale;
      put(dq, k.q_tokens(), args.dq, Queries(s.dim_qk));
    }
    if (k.gives.of_keys) {
      Array& dk = results[results.size() - 2];
      for (size_t i = 0; i < dk.bytes.size() / 4; ++i) dk.floats()[i] *= scale;
      put(dk, k.kv_tokens(), args.dk, Keys(s.dim_qk));
      put(results.back(), k.kv_tokens(), args.dv, Keys(s.dim_v));
    }
    return {};
  }

  // The stock kernels take q scaled, and give the gradient of that: by a power of two, which is exact in bf16.
  void Scale(std::vector<std::byte>& bf16) const {
    for (size_t i = 0; i < bf16.size(); i += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, bf16.data() + i, 2);
      bits = F32ToBf16(Bf16ToF32(bits) * static_cast<float>(contract_.score.scale));
      std::memcpy(bf16.data() + i, &bits, 2);
    }
  }
  Array Scaled(Array q) const {
    if (lowering_.has_band) Scale(q.bytes);
    return q;
  }
  TensorAxes Queries(int64_t dim) const {
    const Shape& s = contract_.shape;
    return {s.batch, s.num_q_heads, s.q_len, dim};
  }
  TensorAxes Keys(int64_t dim) const {
    const Shape& s = contract_.shape;
    return {s.batch, s.num_kv_heads, s.kv_len, dim};
  }
  CallCheck CheckOf(Pass pass) const {
    return {.lane = lane_, .contract = contract_, .workspace_bytes = WorkspaceBytes(pass)};
  }

  Arrays Common(const Kernel& kernel, const TensorRef& k, const TensorRef& v) const {
    Arrays arrays;
    const auto scale = static_cast<float>(contract_.score.scale);
    const auto softcap = static_cast<float>(contract_.score.softcap);
    const float factor = softcap > 0 ? softcap : scale;
    const float numbers[] = {softcap > 0 ? scale / softcap : 0.0F, factor * std::numbers::log2e_v<float>, factor};
    Array score(mosaic::Element::kF32, {1, kernels::kScoreFields});
    std::copy(std::begin(numbers), std::end(numbers), score.floats());
    arrays["score"] = std::move(score);
    arrays["k"] = kernel.Keys(k, contract_.shape.dim_qk);
    arrays["v"] = kernel.Keys(v, contract_.shape.dim_v);
    return arrays;
  }

  void AddBounds(const AttentionSpec& k, Arrays& arrays) const {
    const auto bits = [&](const char* name) {
      const std::vector<std::byte>& bytes = arrays[name].bytes;
      return std::span(reinterpret_cast<const uint16_t*>(bytes.data()), bytes.size() / 2);
    };
    const auto put = [&](const char* name, int64_t heads, const std::vector<float>& bounds) {
      Array array(mosaic::Element::kF32, {heads, 1, static_cast<int64_t>(bounds.size()) / heads});
      std::copy(bounds.begin(), bounds.end(), array.floats());
      arrays[name] = std::move(array);
    };
    put("q_bounds", k.batch * k.num_q_heads, QueryBounds(bits("q"), k, contract_.score.scale));
    put("k_bounds", k.batch * k.num_kv_heads, KeyBounds(bits("k"), bits("v"), k));
  }

  template <class Sees>
  Array Stat(std::span<const float> rows, const AttentionSpec& k, bool is_dkv, float unseen, const Sees& sees) const {
    const int64_t copies = is_dkv ? kernels::kSublanes : 1;
    const int64_t pairs = k.batch * k.num_q_heads;
    Array array(mosaic::Element::kF32, {pairs, copies, k.q_tokens()});
    std::fill_n(array.floats(), pairs * copies * k.q_tokens(), unseen);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (int64_t copy = 0; copy < copies; ++copy) {
        for (int64_t t = 0; t < k.q_len; ++t) {
          if (!sees(pair, t)) continue;
          array.floats()[(pair * copies + copy) * k.q_tokens() + t] = rows[static_cast<size_t>(pair * k.q_len + t)];
        }
      }
    }
    return array;
  }

  // The sink's value is zero, so only its share of the denominator matters: -weight * delta, over rows that have keys.
  void AddSinks(const BackwardArgs& args, std::span<const float> delta) const {
    if (args.dsink_logits.empty()) return;
    std::vector<double> sums(args.dsink_logits.size(), 0.0);
    for (size_t row = 0; row < args.lse.size(); ++row) {
      if (args.lse[row] == -kInf) continue;
      const size_t head = row / static_cast<size_t>(contract_.shape.q_len) % sums.size();
      const double weight = WeightOf(static_cast<double>(args.sink_logits[head]), LeanLse(args.lse[row]));
      sums[head] -= weight * static_cast<double>(delta[row]);
    }
    for (size_t h = 0; h < sums.size(); ++h) args.dsink_logits[h] = static_cast<float>(sums[h]);
  }

  const Lowering& lowering_;
  std::string_view lane_;
  const Contract& contract_;
  int64_t threads_ = 1;
  std::string kernel_;
  DeviceUse device_;
  std::map<Direction, Kernel> kernels_;
  std::map<Direction, int64_t> tiles_;
};

}  // namespace

Result<std::unique_ptr<BoundLane>> BindInterpreted(const Lowering& lowering, const BindRequest& request,
                                                   const stablehlo::ProgramSpec& spec, int64_t threads) {
  auto bound = std::make_unique<BoundInterpreted>(lowering, request, threads);
  for (const Pass pass : request.passes) TESSERA_TRY(bound->Add(spec, request.plan, pass));
  return bound;
}

}  // namespace tessera::lanes::xla
