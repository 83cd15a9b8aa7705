// See conformance.h.
#include "conformance/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lanes/cpu/isa.h"
#include "oracle/oracle.h"

namespace tessera::conformance {
namespace {

// Element offsets of one token's heads.
struct TokenRows {
  int64_t first = 0;
  int64_t head_stride = 0;
  int64_t heads = 0;
  int64_t dim = 0;
};
TokenRows RowsOf(const Tensor& tensor, const Token& at) {
  const int64_t dim = tensor.shape.size() == 3 ? 1 : tensor.shape[3];
  const int64_t heads = tensor.shape[1];
  const int64_t len = tensor.shape[2];
  return {(at.batch_row * heads * len + at.token) * dim, len * dim, heads, dim};
}

// Built, and there is a driver to open. Whether it has a GPU that fits takes seconds to find out: the tests of the lane
// ask that, not every program that lists them.
bool MayHaveCuda() {
  const Result<Selection> selection = SelectLane(ForLane("cuda", MakeContract({})), TargetOf("cuda"));
  EXPECT_TRUE(selection.has_value());
  if (!selection) return false;
  return std::any_of(selection->decisions.begin(), selection->decisions.end(),
                     [](const LaneDecision& d) { return d.lane == "cuda" && d.decision.accepted; });
}

}  // namespace

Target CpuTarget() {
  Result<Target> target = FindTarget("cpu");
  EXPECT_TRUE(target.has_value());
  return target.value_or(Target{});
}

const std::vector<std::string>& LanesUnderTest() {
  static const std::vector<std::string> lanes = [] {
    std::vector<std::string> names;
    const Result<Selection> selection = SelectLane(MakeContract({}), CpuTarget());
    EXPECT_TRUE(selection.has_value());
    if (!selection) return names;
    if (MayHaveCuda()) names.push_back("cuda:sm_90a");
    for (const LaneDecision& decision : selection->decisions) {
      if (!decision.decision.accepted) continue;
      for (const LaneInfo& lane : Lanes()) {
        if (lane.name != decision.lane) continue;
        EXPECT_FALSE(lane.isas.empty()) << lane.name;
        for (const std::string& isa : lane.isas) names.push_back(lane.name + ":" + isa);
      }
    }
    // A TPU's kernels, in the interpreter of their text.
    for (const LaneInfo& lane : Lanes()) {
      if (lane.name == "xla_pallas" && !lane.isas.empty()) names.push_back(lane.name + ":" + lane.isas[0]);
    }
    // What runs only by name, where there is a JAX to call.
    for (const LaneInfo& lane : Lanes()) {
      if (lane.name == "call_jax" && !PeersPython().empty()) names.push_back(lane.name + ":" + lane.isas[0]);
    }
    return names;
  }();
  return lanes;
}

const std::vector<std::string>& HostLanes() {
  static const std::vector<std::string> lanes = [] {
    std::vector<std::string> names = LanesUnderTest();
    std::erase_if(names, [](const std::string& lane) { return !HasAnyShape(lane); });
    return names;
  }();
  return lanes;
}

// Asked by running: what a GPU can do, only a GPU says.
const std::string& CudaProblem() {
  static const std::string problem = [] {
    const Contract contract = ForLane("cuda", MakeContract({}));
    RunOptions options;
    options.lane = "cuda";
    const RunOutcome outcome = Run(contract, {}, MakeInputs(contract, 1, false), TargetOf("cuda"), options);
    return outcome.error ? ToText(*outcome.error) : std::string();
  }();
  return problem;
}

bool HasAnyShape(const std::string& lane) { return LaneOf(lane) != "cuda" && !IsInterpreted(lane); }

Contract ForLane(const std::string& lane, Contract contract) {
  if (HasAnyShape(lane)) return contract;
  Shape& shape = contract.shape;
  const auto before = static_cast<double>(shape.dim_qk);
  if (IsInterpreted(lane)) {
    if (shape.dtype == DType::kF16) shape.dtype = DType::kBf16;
    for (int64_t* dim : {&shape.dim_qk, &shape.dim_v}) *dim = std::clamp<int64_t>((*dim + 63) / 64 * 64, 64, 256);
  } else {
    if (shape.dtype == DType::kF32) shape.dtype = DType::kBf16;
    const bool is_short = shape.dtype == DType::kBf16 && std::max(shape.dim_qk, shape.dim_v) <= 64;
    shape.dim_qk = shape.dim_v = is_short ? 64 : 128;
  }
  contract.score.scale *= std::sqrt(before / static_cast<double>(shape.dim_qk));  // scores stay as large as they were
  if (LaneOf(lane) == "splash") {
    shape.dtype = DType::kBf16;
    contract.score.scale = std::exp2(std::round(std::log2(contract.score.scale)));
  }
  return contract;
}

Target TargetOf(const std::string& lane) {
  if (HasAnyShape(lane)) return CpuTarget();
  return FindTarget(IsInterpreted(lane) ? "v6e" : "h200").value_or(Target{});
}

std::string LaneOf(const std::string& lane) { return lane.substr(0, lane.find(':')); }

std::string IsaOf(const std::string& lane) {
  const size_t colon = lane.find(':');
  return colon == std::string::npos ? "auto" : lane.substr(colon + 1);
}

std::string Slug(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return !isalnum(static_cast<unsigned char>(c)); }, '_');
  return text;
}

bool IsSlow(const std::string& lane) { return LaneOf(lane) == "reference"; }

bool CompilesPerClass(const std::string& lane) { return LaneOf(lane) == "xla_chunked" || LaneOf(lane) == "call_jax"; }

bool IsInterpreted(const std::string& lane) { return LaneOf(lane) == "xla_pallas" || LaneOf(lane) == "splash"; }

int RoundsOf(const std::string& lane, int all) {
  return CompilesPerClass(lane) ? std::max(all / 60, 1) : IsInterpreted(lane) ? std::max(all / 20, 1) : all;
}

void WidenClass(Contract& contract, TileSize tile) {
  const auto number = [](int64_t n) { return Limit{Limit::Kind::kNumber, n}; };
  const auto tiles = [](int64_t len, int64_t size) { return (len + size - 1) / size; };
  contract.capacity.width = number(tiles(contract.shape.kv_len, tile.kv));
  contract.capacity.width_transposed = number(tiles(contract.shape.q_len, tile.q));
  contract.capacity.cleanups = number(1 << 16);
}

Arithmetic ArithmeticOf(const std::string& lane) {
  return LaneOf(lane) == "reference" ? Arithmetic::Double() : Arithmetic::Single();
}

bool IsBitwise(const std::string& lane) { return LaneOf(lane) == "reference"; }

bool IsolatesNonFinite(const std::string& lane) {
  return LaneOf(lane) == "reference" || LaneOf(lane) == "cpu" || LaneOf(lane) == "xla_chunked" ||
         LaneOf(lane) == "cuda";
}

Contract MakeContract(const Small& small) {
  Contract contract;
  contract.shape = {.batch = small.batch,
                    .q_len = small.q_len,
                    .kv_len = small.kv_len,
                    .num_q_heads = small.num_q_heads,
                    .num_kv_heads = small.num_kv_heads,
                    .dim_qk = small.dim_qk,
                    .dim_v = small.dim_v,
                    .dtype = small.dtype};
  Result<MaskExpr> mask = ParseMaskExpr(small.mask);
  EXPECT_TRUE(mask.has_value()) << (mask ? "" : ToText(mask.error()));
  if (mask) contract.mask.heads = {std::move(*mask)};
  contract.mask.offset = small.kv_len - small.q_len;
  contract.score = {.scale = 1.0 / std::sqrt(static_cast<double>(small.dim_qk)),
                    .softcap = small.softcap,
                    .sink_logits = small.sink_logits};
  contract.tiles = {16, 16};
  contract.tiles_reason = "small lengths that still cross tiles";
  return contract;
}

Batch DocumentBatch(const Contract& contract, const std::vector<int64_t>& lengths) {
  std::vector<int32_t> row;
  for (size_t doc = 0; doc < lengths.size(); ++doc) {
    row.insert(row.end(), static_cast<size_t>(lengths[doc]), static_cast<int32_t>(doc));
  }
  row.resize(static_cast<size_t>(contract.shape.q_len), -1);
  IdRows ids{contract.shape.batch, contract.shape.q_len, {}};
  for (int64_t b = 0; b < contract.shape.batch; ++b) ids.values.insert(ids.values.end(), row.begin(), row.end());
  Batch batch;
  batch.doc_ids = std::move(ids);
  return batch;
}

Setting MakeSetting(const std::string& lane, Contract contract, Batch batch, uint64_t seed) {
  Setting setting;
  setting.lane = lane;
  contract = ForLane(lane, std::move(contract));
  setting.inputs = MakeInputs(contract, seed, true);
  setting.contract = std::move(contract);
  setting.batch = std::move(batch);
  setting.options.backward = true;
  setting.options.row_max = LaneOf(lane) != "splash";
  return setting;
}

RunOptions OptionsOf(const Setting& setting) {
  RunOptions options = setting.options;
  options.lane = LaneOf(setting.lane);
  options.isa = IsaOf(setting.lane);
  if (options.lane == "cuda") options.plan.tile.reset();  // its kernels have their own
  if (IsInterpreted(setting.lane)) {
    options.plan.tile = TileSize{128, 128};
    options.xla.interpret = true;
  }
  // Breadth is what this suite is for; the programs themselves are the same, and some tests ask for the full level.
  if (options.lane == "xla_chunked" && !options.xla.optimization) options.xla.optimization = 0;
  options.xla.keep_programs = false;
  return options;
}

RunOutcome RunSetting(const Setting& setting) {
  RunOutcome outcome = Run(setting.contract, setting.batch, setting.inputs, TargetOf(setting.lane), OptionsOf(setting));
  EXPECT_TRUE(!outcome.error.has_value() || IsRefused(outcome)) << ToText(outcome.error.value_or(Error{}));
  if (!outcome.error) {
    EXPECT_EQ(outcome.receipt.executed, LaneOf(setting.lane));
    EXPECT_EQ(outcome.receipt.runtime_mode == "interpreted", IsInterpreted(setting.lane));
    const std::string isa = IsaOf(setting.lane);
    // A set may add kernels for one type only; the others run on the set that it builds on.
    const bool is_forced =
        isa == "auto" || isa == outcome.receipt.isa || lanes::cpu::Includes(isa, outcome.receipt.isa);
    EXPECT_TRUE(is_forced) << outcome.receipt.isa << " ran, not " << isa;
  }
  return outcome;
}

bool IsRefused(const RunOutcome& outcome) {
  return outcome.error && outcome.error->code == ErrorCode::kLaneRefused &&
         ToText(*outcome.error).find(ReasonText(ReasonCode::kTpuStoredBits)) != std::string::npos;
}

CheckOptions CheckOptionsOf(const Setting& setting) {
  CheckOptions check;
  check.layout = setting.options.layout;
  check.arithmetic = ArithmeticOf(setting.lane);
  return check;
}

void ExpectMatchesOracle(const Setting& setting, const TensorMap& outputs) {
  const Result<CheckReport> report =
      CheckOutputs(setting.contract, setting.batch, setting.inputs, outputs, CheckOptionsOf(setting));
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text;
  EXPECT_FALSE(report->sampled) << "this suite compares every element";
  EXPECT_EQ(report->outputs.size(), outputs.size()) << report->text;
}

RunOutcome RunAndCheck(const Setting& setting) {
  RunOutcome outcome = RunSetting(setting);
  if (!outcome.error) ExpectMatchesOracle(setting, outcome.outputs);
  return outcome;
}

void ExpectDenseMask(const Contract& contract, const Batch& batch, TileSize tile) {
  PlanOptions options;
  options.tile = tile;
  options.verify_stages = true;
  const Result<PlanResult> made = MakePlan(contract, batch, CpuTarget(), options);
  ASSERT_TRUE(made.has_value()) << ToText(made.error());
  for (int64_t b = 0; b < contract.shape.batch; ++b) {
    for (int64_t h = 0; h < contract.shape.num_q_heads; ++h) {
      const Result<std::vector<uint8_t>> want = DenseMask(contract, batch, b, h);
      ASSERT_TRUE(want.has_value()) << ToText(want.error());
      for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
        const Result<std::vector<uint8_t>> got = ToDense(made->plan.view(), direction, b, h);
        ASSERT_TRUE(got.has_value()) << ToText(got.error());
        ASSERT_TRUE(*got == *want) << ToText(direction) << ", batch row " << b << ", head " << h << ", tile " << tile.q
                                   << "x" << tile.kv;
      }
    }
  }
}

void FillToken(Tensor& tensor, const Token& at, double value) {
  const TokenRows rows = RowsOf(tensor, at);
  for (int64_t h = 0; h < rows.heads; ++h) {
    for (int64_t d = 0; d < rows.dim; ++d) tensor.Set(rows.first + h * rows.head_stride + d, value);
  }
}

std::vector<std::byte> TokenBytes(const Tensor& tensor, const Token& at) {
  const TokenRows rows = RowsOf(tensor, at);
  const int64_t size = BytesOf(tensor.type);
  std::vector<std::byte> bytes;
  for (int64_t h = 0; h < rows.heads; ++h) {
    const auto begin = tensor.bytes.begin() + (rows.first + h * rows.head_stride) * size;
    bytes.insert(bytes.end(), begin, begin + rows.dim * size);
  }
  return bytes;
}

bool IsZero(const Tensor& tensor, const Token& at) {
  const TokenRows rows = RowsOf(tensor, at);
  for (int64_t h = 0; h < rows.heads; ++h) {
    for (int64_t d = 0; d < rows.dim; ++d) {
      if (tensor.At(rows.first + h * rows.head_stride + d) != 0.0) return false;
    }
  }
  return true;
}

}  // namespace tessera::conformance
