// The lane object: what it accepts, what it binds and how it calls.
#include "lanes/bridge/bridge.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/host.h"
#include "base/try.h"
#include "io/json_writer.h"
#include "lanes/bridge/interpreter.h"
#include "lanes/bridge/request.h"
#include "lanes/check_args.h"

namespace tessera {
namespace {

namespace bridge = lanes::bridge;

constexpr std::string_view kName = "call_jax";
constexpr std::string_view kIsa = "jax";
// Scores of the query heads that share a key head are there at once, in f32 and a few times over; masks for as long as
// they are bound (docs/bridge.md).
constexpr int64_t kMaxScores = int64_t{1} << 26;
constexpr int64_t kMaxMaskBytes = int64_t{1} << 28;

// a * b * c, or INT64_MAX.
int64_t Product(int64_t a, int64_t b, int64_t c) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product)) return INT64_MAX;
  return product;
}

// A tensor as bridge.py reads it: where it is, and its axes.
void Write(JsonWriter& json, const char* name, const void* data, ElementType type, const std::vector<int64_t>& shape,
           const std::vector<int64_t>& strides) {
  json.Key(name).BeginObject().Key("data").Int(static_cast<int64_t>(reinterpret_cast<intptr_t>(data)));
  json.Key("type").Text(ToText(type)).Key("shape").Ints(shape).Key("strides").Ints(strides).EndObject();
}

class CallWriter {
 public:
  CallWriter(const Shape& shape, int64_t number, Pass pass) : shape_(shape) {
    json_.BeginObject().Key("request").Text("run").Key("number").Int(number).Key("pass").Text(ToText(pass));
  }
  void Begin(const char* side) { json_.Key(side).BeginObject(); }
  void End() { json_.EndObject(); }
  void Queries(const char* name, const TensorRef& ref, int64_t dim) {
    Strided(name, ref, {shape_.batch, shape_.num_q_heads, shape_.q_len, dim});
  }
  void Keys(const char* name, const TensorRef& ref, int64_t dim) {
    Strided(name, ref, {shape_.batch, shape_.num_kv_heads, shape_.kv_len, dim});
  }
  void Rows(const char* name, std::span<const float> floats) {
    if (floats.empty()) return;
    const int64_t heads = shape_.num_q_heads;
    Write(json_, name, floats.data(), ElementType::kF32, {shape_.batch, heads, shape_.q_len},
          {heads * shape_.q_len, shape_.q_len, 1});
  }
  void Heads(const char* name, std::span<const float> floats) {
    if (floats.empty()) return;
    Write(json_, name, floats.data(), ElementType::kF32, {shape_.num_q_heads}, {1});
  }
  std::string Take() {
    json_.EndObject();
    return json_.Take();
  }

 private:
  void Strided(const char* name, const TensorRef& ref, const std::vector<int64_t>& shape) {
    if (ref.data == nullptr) return;
    Write(json_, name, ref.data, ref.type, shape, {ref.batch_stride, ref.head_stride, ref.token_stride, 1});
  }
  const Shape& shape_;
  JsonWriter json_;
};

class BoundBridge final : public BoundLane {
 public:
  BoundBridge(const bridge::Interpreter& interpreter, const BindRequest& request, const DocumentValue& answer)
      : interpreter_(interpreter),
        contract_(request.contract),
        plan_(request.plan),
        number_(bridge::NumberOf(answer, "number")),
        kernel_(fmt::format("dense_{}_{}", ToText(request.contract.shape.dtype), kIsa)) {
    const bool is_cpu = request.target.kind == TargetKind::kCpu;
    device_ = {.kind = std::string(ToText(request.target.kind)),
               .name = is_cpu ? HostProcessor() : bridge::TextOf(answer, "name"),
               .ordinal = is_cpu ? 0 : bridge::NumberOf(answer, "ordinal"),
               .memory = "host",
               .driver = interpreter.use().runtime};
    const DocumentValue* programs = answer.Find("programs");
    for (const DocumentValue& program : programs == nullptr ? std::vector<DocumentValue>() : programs->items) {
      Hasher hasher;
      const std::string key = bridge::TextOf(program, "key");
      hasher.Bytes(key.data(), key.size());
      programs_.push_back({.pass = bridge::TextOf(program, "pass"),
                           .name = fmt::format("{}_{}", bridge::TextOf(program, "pass"), kernel_),
                           .source = bridge::TextOf(program, "source"),
                           .key = Hex(hasher.Finish()),
                           .compile_ns = bridge::NumberOf(program, "ns"),
                           .parts = 1,
                           .argument_bytes = -1,
                           .output_bytes = -1,
                           .temp_bytes = -1,
                           .code_bytes = -1});
    }
  }
  ~BoundBridge() override {
    if (interpreter_.IsThere()) interpreter_.Call(fmt::format(R"({{"request": "release", "number": {}}})", number_));
  }
  BoundBridge(const BoundBridge&) = delete;
  BoundBridge& operator=(const BoundBridge&) = delete;

  int64_t WorkspaceBytes(Pass) const override { return 0; }

  Result<int64_t> Forward(const ForwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckForward({.lane = kName, .contract = contract_}, args, call));
    const Shape& s = contract_.shape;
    CallWriter ask(s, number_, Pass::kForward);
    ask.Begin("in");
    ask.Queries("q", args.q, s.dim_qk);
    ask.Keys("k", args.k, s.dim_qk);
    ask.Keys("v", args.v, s.dim_v);
    ask.Heads("sink_logits", args.sink_logits);
    ask.End();
    ask.Begin("out");
    ask.Queries("o", args.o, s.dim_v);
    ask.Rows("lse", args.lse);
    ask.Rows("row_max", args.row_max);
    ask.End();
    return Run(ask, Direction::kForward, call);
  }

  Result<int64_t> Backward(const BackwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckBackward({.lane = kName, .contract = contract_}, args, call));
    const Shape& s = contract_.shape;
    CallWriter ask(s, number_, Pass::kBackward);
    ask.Begin("in");
    ask.Queries("q", args.q, s.dim_qk);
    ask.Keys("k", args.k, s.dim_qk);
    ask.Keys("v", args.v, s.dim_v);
    ask.Queries("dout", args.dout, s.dim_v);
    ask.Heads("sink_logits", args.sink_logits);
    ask.Rows("lse", args.lse);
    if (args.delta.empty()) ask.Queries("o", args.o, s.dim_v);
    ask.Rows("delta", args.delta);
    ask.End();
    ask.Begin("out");
    ask.Queries("dq", args.dq, s.dim_qk);
    ask.Keys("dk", args.dk, s.dim_qk);
    ask.Keys("dv", args.dv, s.dim_v);
    ask.Heads("dsink_logits", args.dsink_logits);
    ask.End();
    return Run(ask, Direction::kDkv, call);
  }

  Facts Describe() const override { return {kernel_, kIsa, device_, programs_}; }

 private:
  Result<int64_t> Run(CallWriter& ask, Direction direction, const LaneCall& call) const {
    const DocumentValue answer = TESSERA_TRY(bridge::Ask(interpreter_, ask.Take()));
    if (call.crossing != nullptr) {
      CrossingUse& crossing = *call.crossing;
      crossing = interpreter_.use();
      crossing.calls = 1;
      crossing.bytes_in = bridge::NumberOf(answer, "bytes_in");
      crossing.copied_in = bridge::NumberOf(answer, "copied_in");
      crossing.copies_in = bridge::NumberOf(answer, "copies_in");
      crossing.bytes_out = bridge::NumberOf(answer, "bytes_out");
      crossing.copies_out = bridge::NumberOf(answer, "copies_out");
    }
    // JAX computes every pair, allowed or not, and the count says so: no tile was skipped.
    const TileCounts tiles = CountTiles(plan_, direction);
    return tiles.empty + tiles.partial + tiles.full;
  }

  const bridge::Interpreter& interpreter_;
  const Contract& contract_;
  const PlanView& plan_;
  const int64_t number_;
  const std::string kernel_;
  DeviceUse device_;
  std::vector<ProgramUse> programs_;
};

class Bridge final : public Lane {
 public:
  explicit Bridge(BridgeOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return kName; }
  std::vector<std::string_view> Isas() const override { return {kIsa}; }

  Decision Decide(const Contract& contract, const Target&) const override {
    const Shape& s = contract.shape;
    const int64_t group = s.num_kv_heads > 0 ? s.num_q_heads / s.num_kv_heads : 1;
    if (Product(group, s.q_len, s.kv_len) > kMaxScores) {
      return Decision::No(ReasonCode::kBridgeTooLarge,
                          fmt::format("{} heads on one key head, {} x {} tokens: more than {} scores at once", group,
                                      s.q_len, s.kv_len, kMaxScores));
    }
    if (bridge::IsHostPython()) return Decision::Yes();
    if (options_.python.empty()) {
      return Decision::No(ReasonCode::kBridgeNoInterpreter, "no python3 is on PATH, and TESSERA_PYTHON names none");
    }
    if (access(options_.python.c_str(), X_OK) != 0) {
      return Decision::No(ReasonCode::kBridgeNoInterpreter, fmt::format("{} cannot be run", options_.python));
    }
    return Decision::Yes();
  }

  Decision DecidePlan(const Contract& contract, const PlanView& plan, const Target& target) const override {
    const int64_t bytes = Product(plan.num_masks, contract.shape.q_len, contract.shape.kv_len);
    if (bytes > kMaxMaskBytes) {
      return Decision::No(ReasonCode::kBridgeTooLarge,
                          fmt::format("{} masks of {} x {} tokens: more than {} bytes", plan.num_masks,
                                      contract.shape.q_len, contract.shape.kv_len, kMaxMaskBytes));
    }
    const bridge::OpenedInterpreter opened = bridge::OpenInterpreter(options_.python);
    if (opened.interpreter == nullptr) return opened.decision;
    const Result<DocumentValue> answer = bridge::Ask(
        *opened.interpreter, fmt::format(R"({{"request": "find", "platform": "{}"}})", ToText(target.kind)));
    if (!answer) return Decision::No(ReasonCode::kBridgeStart, answer.error().message);
    const DocumentValue* problem = answer->Find("no_device");
    return problem == nullptr ? Decision::Yes() : Decision::No(ReasonCode::kBridgeNoDevice, problem->text);
  }

  Result<std::unique_ptr<BoundLane>> Bind(const BindRequest& request) const override {
    const std::vector<std::string_view> isas = Isas();
    TESSERA_TRY(CheckBind(request, {.lane = kName, .isas = isas}));
    const bridge::OpenedInterpreter opened = bridge::OpenInterpreter(options_.python);
    if (opened.interpreter == nullptr) return tl::unexpected(bridge::Refusal(opened.decision));
    const std::vector<uint8_t> masks = TESSERA_TRY(DenseMasks(request));
    const DocumentValue answer = TESSERA_TRY(bridge::Ask(*opened.interpreter, BindText(request, masks)));
    return std::make_unique<BoundBridge>(*opened.interpreter, request, answer);
  }

 private:
  // Every distinct mask of the plan, one byte a pair.
  static Result<std::vector<uint8_t>> DenseMasks(const BindRequest& request) {
    const PlanView& plan = request.plan;
    const Direction direction = request.passes.front() == Pass::kForward ? Direction::kForward : Direction::kDkv;
    const int64_t size = plan.q_len * plan.kv_len;
    std::vector<uint8_t> masks(static_cast<size_t>(plan.num_masks * size));
    for (int64_t mask = 0; mask < plan.num_masks; ++mask) {
      const auto found = std::find(plan.mask_of.begin(), plan.mask_of.end(), static_cast<uint32_t>(mask));
      if (found == plan.mask_of.end()) continue;  // of no head: never asked for
      const int64_t at = found - plan.mask_of.begin();
      const std::vector<uint8_t> dense =
          TESSERA_TRY(ToDense(plan, direction, at / plan.num_q_heads, at % plan.num_q_heads));
      std::copy(dense.begin(), dense.end(), masks.begin() + mask * size);
    }
    return masks;
  }

  static std::string BindText(const BindRequest& request, const std::vector<uint8_t>& masks) {
    const Shape& s = request.contract.shape;
    JsonWriter json;
    json.BeginObject().Key("request").Text("bind").Key("platform").Text(ToText(request.target.kind));
    json.Key("shape").BeginObject();
    for (const auto& [name, value] :
         std::initializer_list<std::pair<const char*, int64_t>>{{"batch", s.batch},
                                                                {"q_len", s.q_len},
                                                                {"kv_len", s.kv_len},
                                                                {"num_q_heads", s.num_q_heads},
                                                                {"num_kv_heads", s.num_kv_heads},
                                                                {"dim_qk", s.dim_qk},
                                                                {"dim_v", s.dim_v}}) {
      json.Key(name).Int(value);
    }
    json.Key("dtype").Text(ToText(s.dtype)).EndObject();
    json.Key("masks").Int(static_cast<int64_t>(reinterpret_cast<intptr_t>(masks.data())));
    json.Key("num_masks").Int(request.plan.num_masks).Key("mask_of").BeginArray();
    for (const uint32_t mask : request.plan.mask_of) json.Int(mask);
    json.EndArray().Key("passes").BeginArray();
    for (const Pass pass : request.passes) json.Text(ToText(pass));
    json.EndArray().Key("scale").Real(request.contract.score.scale).Key("softcap").Real(request.contract.score.softcap);
    return json.Key("sinks").Bool(request.contract.score.sink_logits).EndObject().Take();
  }

  BridgeOptions options_;
};

}  // namespace

std::unique_ptr<Lane> MakeBridgeLane(BridgeOptions options) { return std::make_unique<Bridge>(std::move(options)); }

}  // namespace tessera
