// See context_program.h.
#include "shard/context_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/try.h"
#include "shard/cut_program.h"
#include "shard/stretches.h"
#include "tessera/dtype.h"

namespace tessera::shard {
namespace {

using stablehlo::ContextKind;
using stablehlo::ContextSpec;

pjrt::TensorType ToPjrt(const stablehlo::Type& type) {
  using stablehlo::Element;
  pjrt::ElementType element = pjrt::ElementType::kS32;
  if (type.element == Element::kF32) element = pjrt::ElementType::kF32;
  if (type.element == Element::kBf16) element = pjrt::ElementType::kBf16;
  if (type.element == Element::kF16) element = pjrt::ElementType::kF16;
  if (type.element == Element::kUi32) element = pjrt::ElementType::kU32;
  return {element, type.dims};
}

struct TokensOf {
  int64_t heads = 0;
  int64_t token_bytes = 0;
};

// Whole tensor [batch, heads, tokens, ..] and a shard's, one way or the other.
template <class Copy>
void ForTokens(const ContextPlan& plan, size_t shard, const TokensOf& of, const Copy& copy) {
  const int64_t whole_len = plan.contract.shape.q_len;
  const int64_t shard_len = plan.tiles_per_shard * plan.tile;
  for (size_t b = 0; b < plan.rows.size(); ++b) {
    ForStretches(plan.rows[b], shard, [&](int64_t given, int64_t own, int64_t count) {
      for (int64_t h = 0; h < of.heads; ++h) {
        const int64_t head = static_cast<int64_t>(b) * of.heads + h;
        copy(static_cast<size_t>((head * whole_len + given) * of.token_bytes),
             static_cast<size_t>((head * shard_len + own) * of.token_bytes),
             static_cast<size_t>(count * of.token_bytes));
      }
    });
  }
}

Result<std::vector<std::byte>> CutOne(const ContextPlan& plan, size_t shard, std::span<const std::byte> whole,
                                      const TokensOf& of, const char* name) {
  const Shape& s = plan.contract.shape;
  const auto expected = static_cast<size_t>(s.batch * of.heads * s.q_len * of.token_bytes);
  if (whole.size() != expected) {
    return Fail(ErrorCode::kTensorMismatch, fmt::format("expected {} bytes, found {}", expected, whole.size()), name);
  }
  std::vector<std::byte> out(
      static_cast<size_t>(s.batch * of.heads * plan.tiles_per_shard * plan.tile * of.token_bytes));
  ForTokens(plan, shard, of,
            [&](size_t from, size_t to, size_t count) { std::memcpy(out.data() + to, whole.data() + from, count); });
  return out;
}

}  // namespace

std::vector<int64_t> ShardTokens(const ContextPlan& plan, size_t shard) {
  const int64_t own_len = plan.tiles_per_shard * plan.tile;
  std::vector<int64_t> tokens(plan.rows.size() * static_cast<size_t>(own_len), -1);
  for (size_t b = 0; b < plan.rows.size(); ++b) {
    const auto row = static_cast<int64_t>(b);
    ForStretches(plan.rows[b], shard, [&](int64_t given, int64_t own, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        tokens[static_cast<size_t>(row * own_len + own + i)] = row * plan.contract.shape.q_len + given + i;
      }
    });
  }
  return tokens;
}

Result<std::vector<ShardTensors>> CutTensors(const ContextPlan& plan, const WholeTensors& whole) {
  const Shape& s = plan.contract.shape;
  const int64_t e = BytesOf(s.dtype);
  std::vector<ShardTensors> out(static_cast<size_t>(plan.shards));
  for (size_t shard = 0; shard < out.size(); ++shard) {
    out[shard].q = TESSERA_TRY(CutOne(plan, shard, whole.q, {s.num_q_heads, s.dim_qk * e}, "q"));
    out[shard].k = TESSERA_TRY(CutOne(plan, shard, whole.k, {s.num_kv_heads, s.dim_qk * e}, "k"));
    out[shard].v = TESSERA_TRY(CutOne(plan, shard, whole.v, {s.num_kv_heads, s.dim_v * e}, "v"));
    if (whole.dout.empty()) continue;
    constexpr int64_t kStat = sizeof(float);
    out[shard].dout = TESSERA_TRY(CutOne(plan, shard, whole.dout, {s.num_q_heads, s.dim_v * e}, "do"));
    out[shard].lse = TESSERA_TRY(CutOne(plan, shard, std::as_bytes(whole.lse), {s.num_q_heads, kStat}, "lse"));
    out[shard].delta = TESSERA_TRY(CutOne(plan, shard, std::as_bytes(whole.delta), {s.num_q_heads, kStat}, "delta"));
  }
  return out;
}

Result<ContextRunner> ContextRunner::Make(pjrt::Client& client, const ContextPlan& plan,
                                          const std::map<std::string, pjrt::OptionValue>& flags, ContextPass pass,
                                          std::optional<int64_t> max_device_bytes) {
  if (static_cast<int64_t>(client.devices().size()) < plan.shards) {
    return Fail(ErrorCode::kMeshDevices,
                fmt::format("{} shards need as many devices, and there are {}", plan.shards, client.devices().size()),
                "devices");
  }
  ContextRunner runner;
  runner.client_ = &client;
  runner.pass_ = pass;
  runner.spec_ = TESSERA_TRY(ContextSpecOf(
      plan, {.received = {}, .brings_rows = pass == ContextPass::kBackward && plan.gradients == GradientWay::kRows}));
  runner.lowered_ = TESSERA_TRY(pass == ContextPass::kForward ? stablehlo::LowerContextForward(runner.spec_)
                                                              : stablehlo::LowerContextBackward(runner.spec_));
  runner.table_ = TESSERA_TRY(TableOf(plan, pass, runner.lowered_, max_device_bytes));
  const stablehlo::Program& program = runner.lowered_.program;
  pjrt::CompileOptions options;
  options.num_partitions = plan.shards;
  options.use_spmd = true;
  options.use_shardy = true;
  for (int64_t d = 0; d < plan.shards; ++d) options.device_ids.push_back(client.devices()[static_cast<size_t>(d)].id);
  for (const stablehlo::NamedType& input : program.inputs) options.inputs.push_back(ToPjrt(input.type));
  options.overrides = flags;
  runner.executable_ = std::make_shared<const pjrt::Executable>(TESSERA_TRY(client.Compile(program.text, options)));
  runner.collectives_ = TESSERA_TRY(runner.executable_->Optimized()).collective_calls;
  return runner;
}

Result<ContextRunner::Run> ContextRunner::Launch(ContextPass pass, const ContextPlan& plan,
                                                 std::span<const ShardTensors> shards,
                                                 std::span<const float> sink_logits) const {
  if (pass != pass_) return Fail(ErrorCode::kContextMismatch, "the program is one of the other pass", "pass");
  const DeviceTables tables = TESSERA_TRY(
      MakeDeviceTables(spec_, plan,
                       pass == ContextPass::kForward ? std::vector<Direction>{Direction::kForward}
                                                     : std::vector<Direction>{Direction::kDq, Direction::kDkv}));
  TESSERA_TRY(CheckRounds(spec_, tables));
  if (shards.size() != tables.size()) {
    return Fail(ErrorCode::kShardLost,
                fmt::format("expected the tensors of {} shards, found {}", tables.size(), shards.size()), "shards");
  }
  const auto scale = static_cast<float>(plan.contract.score.scale);
  const auto softcap = static_cast<float>(plan.contract.score.softcap);
  const auto own_heads = static_cast<size_t>(spec_.local.shape.num_q_heads);
  const size_t all_heads = plan.contract.score.sink_logits ? static_cast<size_t>(spec_.shape.num_q_heads) : 0;
  if (sink_logits.size() != all_heads) {
    return Fail(ErrorCode::kTensorMismatch,
                fmt::format("expected {} sink logits, found {}", all_heads, sink_logits.size()), "sink_logits");
  }
  const std::vector<stablehlo::NamedType>& inputs = lowered_.program.inputs;
  std::vector<std::vector<pjrt::Buffer>> buffers(shards.size());
  for (size_t d = 0; d < shards.size(); ++d) {
    const size_t first_head = spec_.kind == ContextKind::kHeads ? d * own_heads : 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = inputs[i].name;
      std::span<const std::byte> bytes;
      if (name == "q") bytes = shards[d].q;
      if (name == "k") bytes = shards[d].k;
      if (name == "v") bytes = shards[d].v;
      if (name == "do") bytes = shards[d].dout;
      if (name == "lse") bytes = shards[d].lse;
      if (name == "delta") bytes = shards[d].delta;
      if (name == "scale") bytes = std::as_bytes(std::span(&scale, 1));
      if (name == "softcap") bytes = std::as_bytes(std::span(&softcap, 1));
      if (name == "sink_logits") bytes = std::as_bytes(sink_logits.subspan(first_head, own_heads));
      const pjrt::TensorType& type = executable_->inputs()[i];
      std::vector<int32_t> table;
      if (const auto found = tables[d].find(name); found != tables[d].end()) {
        table = found->second;
        // A tile's words are read as one piece, with room behind the last.
        if (name == "words") table.resize(static_cast<size_t>(type.bytes()) / sizeof(int32_t));
        bytes = std::as_bytes(std::span(table));
      }
      if (bytes.size() != static_cast<size_t>(type.bytes())) {
        return Fail(bytes.empty() ? ErrorCode::kShardLost : ErrorCode::kTensorMismatch,
                    fmt::format("shard {}: expected {} bytes of {}, found {}", d, type.bytes(), name, bytes.size()),
                    name);
      }
      buffers[d].push_back(TESSERA_TRY(client_->Upload(type, bytes, static_cast<int64_t>(d))));
    }
  }
  std::vector<std::vector<const pjrt::Buffer*>> args(shards.size());
  for (size_t d = 0; d < shards.size(); ++d) {
    for (const pjrt::Buffer& buffer : buffers[d]) args[d].push_back(&buffer);
  }
  const Clock clock;
  Run run{.launched = TESSERA_TRY(executable_->ExecuteOnAll(args)), .ns = 0};
  for (const pjrt::Launched& one : run.launched) TESSERA_TRY(one.done.Await());
  run.ns = clock.Ns();
  return run;
}

namespace {

// One device's f32 tensor or count.
Result<std::vector<float>> Floats(const pjrt::Buffer& buffer) {
  std::vector<float> values(static_cast<size_t>(buffer.type().bytes()) / sizeof(float));
  TESSERA_TRY(buffer.Download(std::as_writable_bytes(std::span(values))));
  return values;
}
Result<int64_t> Count(const pjrt::Buffer& buffer) {
  int32_t count = 0;
  TESSERA_TRY(buffer.Download(std::as_writable_bytes(std::span(&count, 1))));
  return count;
}

}  // namespace

Result<ContextOutputs> ContextRunner::Forward(const ContextPlan& plan, std::span<const ShardTensors> shards,
                                              std::span<const float> sink_logits) const {
  const Run run = TESSERA_TRY(Launch(ContextPass::kForward, plan, shards, sink_logits));
  const std::vector<pjrt::Launched>& launched = run.launched;
  const Shape& s = plan.contract.shape;
  const int64_t o_token = s.dim_v * BytesOf(s.dtype);
  ContextOutputs out;
  out.run_ns = run.ns;
  out.o.resize(static_cast<size_t>(s.batch * s.num_q_heads * s.q_len * o_token));
  out.lse.resize(static_cast<size_t>(s.batch * s.num_q_heads * s.q_len));
  for (size_t d = 0; d < launched.size(); ++d) {
    std::vector<std::byte> own(static_cast<size_t>(launched[d].outputs[0].type().bytes()));
    TESSERA_TRY(launched[d].outputs[0].Download(own));
    ForTokens(plan, d, {s.num_q_heads, o_token},
              [&](size_t to, size_t from, size_t count) { std::memcpy(out.o.data() + to, own.data() + from, count); });
    const std::vector<float> lse = TESSERA_TRY(Floats(launched[d].outputs[1]));
    PlaceLse(plan, d, lse, out.lse);
    out.tiles.push_back(TESSERA_TRY(Count(launched[d].outputs[2])));
  }
  return out;
}

Result<ContextGradients> ContextRunner::Backward(const ContextPlan& plan, std::span<const ShardTensors> shards,
                                                 std::span<const float> sink_logits) const {
  const Run run = TESSERA_TRY(Launch(ContextPass::kBackward, plan, shards, sink_logits));
  const std::vector<pjrt::Launched>& launched = run.launched;
  const Shape& s = plan.contract.shape;
  const int64_t rows = s.batch * s.q_len;
  ContextGradients out;
  out.run_ns = run.ns;
  out.dq.resize(static_cast<size_t>(rows * s.num_q_heads * s.dim_qk));
  out.dk.resize(static_cast<size_t>(rows * s.num_kv_heads * s.dim_qk));
  out.dv.resize(static_cast<size_t>(rows * s.num_kv_heads * s.dim_v));
  if (plan.contract.score.sink_logits) out.dsink_logits.resize(static_cast<size_t>(s.num_q_heads), 0.0F);
  for (size_t d = 0; d < launched.size(); ++d) {
    const auto place = [&](size_t output, int64_t heads, int64_t dim, std::vector<float>& into) -> Status {
      const std::vector<float> own = TESSERA_TRY(Floats(launched[d].outputs[output]));
      ForTokens(plan, d, {heads, dim * static_cast<int64_t>(sizeof(float))}, [&](size_t to, size_t from, size_t count) {
        std::memcpy(reinterpret_cast<std::byte*>(into.data()) + to,
                    reinterpret_cast<const std::byte*>(own.data()) + from, count);
      });
      return {};
    };
    TESSERA_TRY(place(0, s.num_q_heads, s.dim_qk, out.dq));
    TESSERA_TRY(place(1, s.num_kv_heads, s.dim_qk, out.dk));
    TESSERA_TRY(place(2, s.num_kv_heads, s.dim_v, out.dv));
    out.tiles.push_back(TESSERA_TRY(Count(launched[d].outputs[3])));
    if (out.dsink_logits.empty()) continue;
    const std::vector<float> shares = TESSERA_TRY(Floats(launched[d].outputs[4]));
    const size_t first_head = spec_.kind == ContextKind::kHeads ? d * shares.size() : 0;
    for (size_t h = 0; h < shares.size(); ++h) out.dsink_logits[first_head + h] += shares[h];
  }
  return out;
}

// A device has the statistics of its own tokens, or of all tokens for its heads, shard after shard.
void ContextRunner::PlaceLse(const ContextPlan& plan, size_t device, std::span<const float> from,
                             std::span<float> to) const {
  const Shape& s = plan.contract.shape;
  const bool is_heads = spec_.kind == ContextKind::kHeads;
  const int64_t heads = spec_.local.shape.num_q_heads;
  const int64_t first_head = is_heads ? static_cast<int64_t>(device) * heads : 0;
  for (size_t b = 0; b < plan.rows.size(); ++b) {
    for (size_t shard = is_heads ? 0 : device; shard < (is_heads ? static_cast<size_t>(spec_.devices) : device + 1);
         ++shard) {
      const int64_t begin = is_heads ? static_cast<int64_t>(shard) * spec_.tokens : 0;
      ForStretches(plan.rows[b], shard, [&](int64_t given, int64_t own, int64_t count) {
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t out_head = static_cast<int64_t>(b) * s.num_q_heads + first_head + h;
          const int64_t in_head = static_cast<int64_t>(b) * heads + h;
          std::copy_n(from.begin() + in_head * spec_.local.shape.q_len + begin + own, count,
                      to.begin() + out_head * s.q_len + given);
        }
      });
    }
  }
}

Result<std::vector<CarriedCollective>> ContextRunner::Carried(const ContextPlan& plan) const {
  return CarriedBy(collectives_, spec_, plan);
}

namespace {

// Rows of exactly the tiles that the batch needs. In a backward the first brings keys and values, and the second gives
// their gradients back to who sent them.
void SetRagged(const pjrt::Collective& call, const ContextPlan& plan, bool is_back, CarriedCollective& one) {
  one.received.assign(static_cast<size_t>(plan.shards), 0);
  one.bytes_per_trip = -1;
  // A compiler may have a row in several dimensions.
  if (call.operands.empty() || !call.operands[0] || call.operands[0]->dims.empty()) return;
  const int64_t row_bytes = call.operands[0]->bytes() / std::max<int64_t>(call.operands[0]->dims[0], 1);
  one.bytes_per_trip = 0;
  for (size_t target = 0; target < plan.needs.size(); ++target) {
    for (size_t source = 0; source < plan.needs.size(); ++source) {
      const int64_t bytes = static_cast<int64_t>(plan.needs[target][source].size()) * row_bytes;
      one.received[is_back ? source : target] += bytes;
      one.bytes_per_trip += bytes;
    }
  }
}

}  // namespace

Result<std::vector<CarriedCollective>> CarriedBy(const std::vector<pjrt::Collective>& collectives,
                                                 const ContextSpec& spec, const ContextPlan& plan) {
  SparseSteps steps;
  SparseSteps row_steps;  // the same pairs with trips of their own
  if (spec.kind == ContextKind::kSparse) steps = MakeSparseSteps(plan.needs);
  if (spec.kind == ContextKind::kSparse && spec.brings_rows) row_steps = MakeSparseSteps(plan.row_needs);
  std::vector<CarriedCollective> out;
  int num_ragged = 0;
  for (const pjrt::Collective& call : collectives) {
    CarriedCollective one{.text = pjrt::ToText(call),
                          .bytes_per_trip = pjrt::CarriedBytes(call, spec.devices),
                          .trips = 1,
                          .pairs = call.pairs};
    if (call.kind == "ragged-all-to-all") {
      SetRagged(call, plan, num_ragged++ > 0, one);
    } else if (call.in_loop) {
      // What is given back goes along pairs turned round, and has an axis less than what is brought.
      // Rows have one more.
      const size_t num_dims = call.operands.size() == 1 && call.operands[0] ? call.operands[0]->dims.size() : 0;
      const bool is_back = num_dims == 3;
      const bool is_of_rows = num_dims == 5 && spec.brings_rows;
      const auto step = std::find_if(steps.pairs.begin(), steps.pairs.end(), [&](const auto& pairs) {
        return std::equal(
            pairs.begin(), pairs.end(), call.pairs.begin(), call.pairs.end(), [&](const auto& a, const auto& b) {
              return a.first == (is_back ? b.second : b.first) && a.second == (is_back ? b.first : b.second);
            });
      });
      if (step == steps.pairs.end()) {
        return Fail(ErrorCode::kShardProgram,
                    "a compiled loop has a collective that no step of the cut names: " + one.text, "program");
      }
      one.trips = (is_of_rows ? row_steps : steps).trips[static_cast<size_t>(step - steps.pairs.begin())];
    }
    if (one.bytes_per_trip < 0) {
      return Fail(ErrorCode::kShardProgram, "a compiled collective has a type whose bytes are not known: " + one.text,
                  "program");
    }
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<int64_t> ReceivedBytes(const std::vector<CarriedCollective>& carried, int64_t devices) {
  std::vector<int64_t> received(static_cast<size_t>(devices), 0);
  for (const CarriedCollective& one : carried) {
    if (one.bytes_per_trip < 0 || one.trips < 1) continue;
    if (!one.received.empty()) {
      for (size_t device = 0; device < received.size(); ++device) received[device] += one.received[device];
      continue;
    }
    const auto moves =
        std::count_if(one.pairs.begin(), one.pairs.end(), [](const auto& p) { return p.first != p.second; });
    if (moves == 0) {
      for (int64_t& bytes : received) bytes += one.bytes_per_trip / devices * one.trips;
      continue;
    }
    for (const auto& [source, target] : one.pairs) {
      if (source != target && target >= 0 && target < devices) {
        received[static_cast<size_t>(target)] += one.bytes_per_trip / moves * one.trips;
      }
    }
  }
  return received;
}

}  // namespace tessera::shard
