// What every lane refuses before it writes a byte, on every lane that is built: each mistake alone has its number, and
// the outputs keep the pattern they were filled with.
#include "lanes/check_args.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/lane_table.h"
#include "lanes/cpu/isa.h"
#include "lanes/xla/xla.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr std::byte kUntouched{0xa5};

std::vector<std::string> BuiltLanes() {
  std::vector<std::string> names;
  for (const LaneRow& row : LaneTable()) {
    if (row.make) names.emplace_back(row.name);
  }
  return names;
}

// Memory at any alignment, filled with a pattern.
class Block {
 public:
  explicit Block(int64_t bytes) : bytes_(static_cast<size_t>(bytes) + 128, kUntouched) {}
  std::byte* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - at % 64) % 64;
  }
  void Clear() { std::fill(bytes_.begin(), bytes_.end(), kUntouched); }
  bool IsUntouched() const { return std::count(bytes_.begin(), bytes_.end(), kUntouched) == std::ssize(bytes_); }
  template <class T>
  std::span<T> As(int64_t count) {
    return {reinterpret_cast<T*>(data()), static_cast<size_t>(count)};
  }

 private:
  std::vector<std::byte> bytes_;
};

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kLen = 24, kDimQk = 8, kDimV = 12;
constexpr int64_t kRows = kBatch * kHeads * kLen;

Contract MakeContract() {
  Contract contract;
  contract.shape = {.batch = kBatch,
                    .q_len = kLen,
                    .kv_len = kLen,
                    .num_q_heads = kHeads,
                    .num_kv_heads = kKvHeads,
                    .dim_qk = kDimQk,
                    .dim_v = kDimV,
                    .dtype = DType::kF32};
  contract.mask.heads = {*ParseMaskExpr("causal")};
  contract.score = {.scale = 0.5, .softcap = 0.0, .sink_logits = true};
  contract.tiles = {16, 16};
  contract.tiles_reason = "a small test";
  return contract;
}

TensorRef Dense(std::byte* data, int64_t heads, int64_t dim) {
  return {ElementType::kF32, data, heads * kLen * dim, kLen * dim, dim};
}

constexpr Pass kBoth[] = {Pass::kForward, Pass::kBackward};

// Where plugins are, for the lane that needs one.
const std::shared_ptr<lanes::xla::State>& XlaState() {
  static const auto& state =
      *new std::shared_ptr<lanes::xla::State>(MakeXlaState({.folder = OptionsFromEnvironment().xla_folder}));
  return state;
}

// A good call of a lane, for a test to spoil.
class CheckArgs : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Lane> Make(LaneContext context = {.threads = 2}) const {
    context.xla_state = XlaState();
    return FindLane(LaneTable(), GetParam())->make(context);
  }
  // Bound to the plan as it is now, with room for both passes.
  void Bind() {
    Result<std::unique_ptr<BoundLane>> bound = lane_->Bind({contract_, view_, target_, kBoth});
    if (!bound) return;  // the tests of good calls say why they are skipped
    bound_ = std::move(*bound);
    workspace_bytes_ = std::max(bound_->WorkspaceBytes(Pass::kForward), bound_->WorkspaceBytes(Pass::kBackward));
    workspace_ = Block(workspace_bytes_);
    call_.workspace = workspace_.As<std::byte>(workspace_bytes_);
  }
  CheckArgs() {
    Result<PlanResult> made = MakePlan(contract_, {}, *FindTarget("cpu"));
    EXPECT_TRUE(made.has_value());
    plan_ = std::move(made->plan);
    view_ = plan_.view();
    inputs_.Clear();
    std::fill_n(inputs_.As<float>(kInputs).begin(), kInputs, 0.25F);
    Bind();
    std::byte* in = inputs_.data();
    const auto next = [&in](int64_t floats) {
      std::byte* at = in;
      in += floats * 4;
      return at;
    };
    backward_.q = Dense(next(kRows * kDimQk), kHeads, kDimQk);
    backward_.k = Dense(next(kBatch * kKvHeads * kLen * kDimQk), kKvHeads, kDimQk);
    backward_.v = Dense(next(kBatch * kKvHeads * kLen * kDimV), kKvHeads, kDimV);
    backward_.dout = Dense(next(kRows * kDimV), kHeads, kDimV);
    backward_.o = Dense(next(kRows * kDimV), kHeads, kDimV);
    backward_.lse = {reinterpret_cast<float*>(next(kRows)), static_cast<size_t>(kRows)};
    backward_.sink_logits = {reinterpret_cast<float*>(next(kHeads)), static_cast<size_t>(kHeads)};
    forward_.q = backward_.q;
    forward_.k = backward_.k;
    forward_.v = backward_.v;
    forward_.sink_logits = backward_.sink_logits;
    std::byte* out = outputs_.data();
    const auto put = [&out](int64_t floats) {
      std::byte* at = out;
      out += floats * 4;
      return at;
    };
    forward_.o = Dense(put(kRows * kDimV), kHeads, kDimV);
    forward_.lse = {reinterpret_cast<float*>(put(kRows)), static_cast<size_t>(kRows)};
    forward_.row_max = {reinterpret_cast<float*>(put(kRows)), static_cast<size_t>(kRows)};
    backward_.dq = Dense(put(kRows * kDimQk), kHeads, kDimQk);
    backward_.dk = Dense(put(kBatch * kKvHeads * kLen * kDimQk), kKvHeads, kDimQk);
    backward_.dv = Dense(put(kBatch * kKvHeads * kLen * kDimV), kKvHeads, kDimV);
    backward_.dsink_logits = {reinterpret_cast<float*>(put(kHeads)), static_cast<size_t>(kHeads)};
  }

  void Expect(const Result<int64_t>& result, ErrorCode code, const std::string& field) {
    ASSERT_FALSE(result.has_value()) << field;
    EXPECT_EQ(CodeText(result.error().code), CodeText(code)) << field << ": " << ToText(result.error());
    if (!field.empty()) {
      ASSERT_EQ(result.error().violations.size(), 1u) << field << ": " << ToText(result.error());
      EXPECT_EQ(result.error().violations[0].field, field) << ToText(result.error());
    }
    EXPECT_EQ(result.error().where, GetParam());
    EXPECT_TRUE(outputs_.IsUntouched()) << field << ": an output was written";
  }
  void ForwardFails(ErrorCode code, const std::string& field,
                    const std::function<void(LaneCall&, ForwardArgs&)>& spoil) {
    LaneCall call = call_;
    ForwardArgs args = forward_;
    spoil(call, args);
    Expect(bound_->Forward(args, call), code, field);
  }
  void BackwardFails(ErrorCode code, const std::string& field,
                     const std::function<void(LaneCall&, BackwardArgs&)>& spoil) {
    LaneCall call = call_;
    BackwardArgs args = backward_;
    spoil(call, args);
    Expect(bound_->Backward(args, call), code, field);
  }
  // The same mistake, made in either call.
  void BothFail(ErrorCode code, const std::string& field, const std::function<void(LaneCall&)>& spoil) {
    ForwardFails(code, field, [&](LaneCall& call, ForwardArgs&) { spoil(call); });
    BackwardFails(code, field, [&](LaneCall& call, BackwardArgs&) { spoil(call); });
  }
  // A mistake that stands before any call.
  void BindFails(ErrorCode code, const std::string& field, const Lane& lane, const BindRequest& request) {
    const Result<std::unique_ptr<BoundLane>> bound = lane.Bind(request);
    ASSERT_FALSE(bound.has_value()) << field;
    Expect(tl::unexpected(bound.error()), code, field);
  }

  // What keeps a lane from running at all here, a plugin that is not installed for one: a test that ends in a good call
  // is skipped with it. What a lane refuses, it refuses all the same.
  std::string WhyNotHere() const {
    const Result<MaskFacts> facts = DescribeMask(contract_);
    if (!facts) return ToText(facts.error());
    // By the table's row first: a lane itself is never asked of a target that its row does not name.
    const Decision decision = DecideContract({FindLane(LaneTable(), GetParam()), lane_}, contract_, *facts, target_);
    return decision.accepted ? "" : std::string(ReasonText(decision.reason)) + ": " + decision.detail;
  }

  static constexpr int64_t kInputs = 64 * 1024;
  const Target target_ = *FindTarget("cpu");
  const std::shared_ptr<const Lane> lane_ = Make();
  Contract contract_ = MakeContract();
  Plan plan_;
  PlanView view_;
  Block inputs_{kInputs * 4}, outputs_{kInputs * 4}, workspace_{0};
  int64_t workspace_bytes_ = 0;
  std::unique_ptr<BoundLane> bound_;
  LaneCall call_;
  ForwardArgs forward_;
  BackwardArgs backward_;
};
INSTANTIATE_TEST_SUITE_P(Lanes, CheckArgs, testing::ValuesIn(BuiltLanes()));

using T = TensorRef;

TEST_P(CheckArgs, GoodCalls_Run) {
  if (const std::string why = WhyNotHere(); !why.empty()) GTEST_SKIP() << why;
  const Result<int64_t> forward = bound_->Forward(forward_, call_);
  ASSERT_TRUE(forward.has_value()) << ToText(forward.error());
  const Result<int64_t> backward = bound_->Backward(backward_, call_);
  ASSERT_TRUE(backward.has_value()) << ToText(backward.error());
  EXPECT_FALSE(outputs_.IsUntouched());
  const std::vector<std::string_view> isas = lane_->Isas();
  ASSERT_FALSE(isas.empty());
  // A set may add kernels for one type only; the others run on the set that it builds on.
  const std::string_view best = bound_->Describe().isa;
  EXPECT_TRUE(lanes::cpu::Includes(isas.front(), best)) << best << ", but auto is the best";
  for (const std::string_view isa : isas) {
    const std::shared_ptr<const Lane> lane = Make({.isa = std::string(isa), .threads = 2});
    const Result<std::unique_ptr<BoundLane>> forced = lane->Bind({contract_, view_, target_, kBoth});
    ASSERT_TRUE(forced.has_value()) << ToText(forced.error());
    Block workspace(std::max((*forced)->WorkspaceBytes(Pass::kForward), (*forced)->WorkspaceBytes(Pass::kBackward)));
    const LaneCall call{workspace.As<std::byte>(
        std::max((*forced)->WorkspaceBytes(Pass::kForward), (*forced)->WorkspaceBytes(Pass::kBackward)))};
    EXPECT_TRUE((*forced)->Forward(forward_, call).has_value());
    EXPECT_TRUE((*forced)->Backward(backward_, call).has_value());
    const std::string_view ran = (*forced)->Describe().isa;
    EXPECT_TRUE(lanes::cpu::Includes(isa, ran)) << ran;
  }
}

TEST_P(CheckArgs, OneMachineIsa_IsTheBestThatCounts) {
  if (GetParam() != "cpu") GTEST_SKIP() << "only the CPU lane has several instruction sets";
  for (const std::string_view isa : lane_->Isas()) {
    const std::shared_ptr<const Lane> lane = Make({.machine_isa = std::string(isa), .threads = 1});
    EXPECT_EQ(lane->Isas().front(), isa);
    const Result<std::unique_ptr<BoundLane>> bound = lane->Bind({contract_, view_, target_, kBoth});
    ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
    EXPECT_TRUE(lanes::cpu::Includes(isa, (*bound)->Describe().isa)) << (*bound)->Describe().isa;
  }
  EXPECT_TRUE(Make({.machine_isa = "sse9", .threads = 1})->Isas().empty());
}

TEST_P(CheckArgs, EachTensorOfAForward_NullMisalignedWrong) {
  if (const std::string why = WhyNotHere(); !why.empty()) GTEST_SKIP() << why;
  constexpr ErrorCode kCode = ErrorCode::kTensorMismatch;
  const std::vector<std::pair<std::string, T ForwardArgs::*>> tensors = {
      {"q", &ForwardArgs::q}, {"k", &ForwardArgs::k}, {"v", &ForwardArgs::v}, {"o", &ForwardArgs::o}};
  for (const auto& [name, member] : tensors) {
    const auto spoil = [&, name = name, member = member](const std::function<void(T&)>& how) {
      ForwardFails(kCode, name, [&](LaneCall&, ForwardArgs& args) { how(args.*member); });
    };
    spoil([](T& t) { t.data = nullptr; });
    spoil([](T& t) { t.data += 2; });
    spoil([](T& t) { t.type = ElementType::kI32; });
    spoil([](T& t) { t.token_stride = -1; });
    spoil([](T& t) { t.head_stride = -1; });
    spoil([](T& t) { t.batch_stride = -1; });
    spoil([](T& t) { t.batch_stride = INT64_MAX / 2; });
    if (name != "o") spoil([](T& t) { t.type = ElementType::kF16; });
  }
  const auto output = [&](const std::function<void(T&)>& how) {
    ForwardFails(kCode, "o", [&](LaneCall&, ForwardArgs& args) { how(args.o); });
  };
  output([](T& o) { o.token_stride = kDimV - 1; });
  output([](T& o) { o.head_stride = 0; });
  output([](T& o) { o.batch_stride = kDimV; });
  const auto floats = [&](const std::string& name, auto member) {
    ForwardFails(kCode, name, [&](LaneCall&, ForwardArgs& args) { args.*member = (args.*member).subspan(1); });
  };
  floats("lse", &ForwardArgs::lse);
  floats("max", &ForwardArgs::row_max);
  floats("sink_logits", &ForwardArgs::sink_logits);
  ForwardFails(kCode, "sink_logits", [](LaneCall&, ForwardArgs& args) { args.sink_logits = {}; });
  ForwardFails(kCode, "lse", [](LaneCall&, ForwardArgs& args) {
    auto* odd = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(args.lse.data()) + 2);
    args.row_max = {};
    args.lse = {odd, args.lse.size()};
  });
}

TEST_P(CheckArgs, EachTensorOfABackward_NullMisalignedWrong) {
  if (const std::string why = WhyNotHere(); !why.empty()) GTEST_SKIP() << why;
  constexpr ErrorCode kCode = ErrorCode::kTensorMismatch;
  const std::vector<std::pair<std::string, T BackwardArgs::*>> tensors = {
      {"q", &BackwardArgs::q}, {"k", &BackwardArgs::k},   {"v", &BackwardArgs::v},   {"do", &BackwardArgs::dout},
      {"o", &BackwardArgs::o}, {"dq", &BackwardArgs::dq}, {"dk", &BackwardArgs::dk}, {"dv", &BackwardArgs::dv}};
  for (const auto& [name, member] : tensors) {
    const auto spoil = [&, name = name, member = member](const std::function<void(T&)>& how) {
      BackwardFails(kCode, name, [&](LaneCall&, BackwardArgs& args) { how(args.*member); });
    };
    spoil([](T& t) { t.data = nullptr; });
    spoil([](T& t) { t.data += 1; });
    spoil([](T& t) { t.type = ElementType::kBool; });
    spoil([](T& t) { t.token_stride = INT64_MIN; });
    if (name.size() == 2 && name[0] == 'd' && name != "do") spoil([](T& t) { t.token_stride = 3; });
  }
  const auto floats = [&](const std::string& name, auto member) {
    BackwardFails(kCode, name, [&](LaneCall&, BackwardArgs& args) { args.*member = (args.*member).subspan(1); });
  };
  floats("lse", &BackwardArgs::lse);
  floats("sink_logits", &BackwardArgs::sink_logits);
  floats("dsink_logits", &BackwardArgs::dsink_logits);
  BackwardFails(kCode, "lse", [](LaneCall&, BackwardArgs& args) { args.lse = {}; });
  BackwardFails(kCode, "delta", [](LaneCall&, BackwardArgs& args) { args.delta = args.lse.subspan(1); });
}

TEST_P(CheckArgs, OutputsThatShareMemory) {
  if (const std::string why = WhyNotHere(); !why.empty()) GTEST_SKIP() << why;
  constexpr ErrorCode kCode = ErrorCode::kTensorMismatch;
  const auto forward = [&](const std::string& field, const std::function<void(ForwardArgs&)>& how) {
    ForwardFails(kCode, field, [&](LaneCall&, ForwardArgs& args) { how(args); });
  };
  forward("o", [](ForwardArgs& args) {  // its last value alone
    args.q.data = args.o.data + (kRows * kDimV - 1) * 4;
    args.lse = args.row_max = {};
  });
  forward("lse", [](ForwardArgs& args) { args.lse = args.row_max; });
  forward("max", [](ForwardArgs& args) {
    args.row_max = {reinterpret_cast<float*>(args.o.data) + kRows * kDimV - 1, args.row_max.size()};
    args.lse = {};
  });
  const auto backward = [&](const std::string& field, const std::function<void(BackwardArgs&)>& how) {
    BackwardFails(kCode, field, [&](LaneCall&, BackwardArgs& args) { how(args); });
  };
  backward("dk", [](BackwardArgs& args) { args.dk.data = args.dv.data + 64; });
  backward("dq", [](BackwardArgs& args) { args.dq.data = args.q.data; });
  backward("dsink_logits", [](BackwardArgs& args) {
    args.dsink_logits = {const_cast<float*>(args.lse.data()) + 3, kHeads};
  });
  // The workspace is written too.
  BothFail(kCode, "workspace", [](LaneCall& call) { call.workspace = call.workspace.first(0); });
  ForwardFails(kCode, "q", [](LaneCall& call, ForwardArgs& args) {
    args.q.data = call.workspace.data();
    args.q.batch_stride = args.q.head_stride = args.q.token_stride = 0;
  });
}

TEST_P(CheckArgs, ViewsOfOneBufferThatOnlyInterleave_Run) {
  if (const std::string why = WhyNotHere(); !why.empty()) GTEST_SKIP() << why;
  // dq, dk and dv as slices of one [B, T, heads, dim] buffer, and q, k, v of another.
  constexpr int64_t kDim = 16;
  contract_.shape.dim_qk = contract_.shape.dim_v = kDim;
  Result<PlanResult> made = MakePlan(contract_, {}, *FindTarget("cpu"));
  ASSERT_TRUE(made.has_value());
  view_ = made->plan.view();
  Bind();
  ASSERT_NE(bound_, nullptr);
  constexpr int64_t kAll = kHeads + 2 * kKvHeads;
  const auto slice = [&](Block& block, int64_t first_head) {
    return T{ElementType::kF32, block.data() + first_head * kDim * 4, kLen * kAll * kDim, kDim, kAll * kDim};
  };
  Block gradients(kBatch * kLen * kAll * kDim * 4);
  Block rest(kInputs * 4);
  std::fill_n(rest.As<float>(kInputs).begin(), kInputs, 0.5F);
  backward_.q = slice(inputs_, 0);
  backward_.k = slice(inputs_, kHeads);
  backward_.v = slice(inputs_, kHeads + kKvHeads);
  backward_.dout = backward_.o = Dense(rest.data(), kHeads, kDim);
  backward_.lse = rest.As<float>(kRows);
  backward_.sink_logits = rest.As<float>(kHeads);
  backward_.dq = slice(gradients, 0);
  backward_.dk = slice(gradients, kHeads);
  backward_.dv = slice(gradients, kHeads + kKvHeads);
  const Result<int64_t> good = bound_->Backward(backward_, call_);
  ASSERT_TRUE(good.has_value()) << ToText(good.error());
  backward_.dv.data -= 4;
  EXPECT_FALSE(bound_->Backward(backward_, call_).has_value()) << "one element of dk";
}

TEST_P(CheckArgs, TensorsElsewhereAndStreams_AreRefused) {
  if (const std::string why = WhyNotHere(); !why.empty()) GTEST_SKIP() << why;
  const MemorySpace gpu{MemoryKind::kGpu, 1};
  ForwardFails(ErrorCode::kTensorMismatch, "q", [&](LaneCall&, ForwardArgs& args) { args.q.space = gpu; });
  BackwardFails(ErrorCode::kTensorMismatch, "dk", [&](LaneCall&, BackwardArgs& args) { args.dk.space = gpu; });
  BothFail(ErrorCode::kBadArgument, "", [&](LaneCall& call) { call.stream = this; });
}

TEST_P(CheckArgs, CallsAndLanes_WithoutRoomThreadsOrTheirInstructionSet) {
  const BindRequest good{contract_, view_, target_, kBoth};
  const bool is_jax = GetParam() == "call_jax";                        // whose threads are JAX's own
  if (GetParam() != "reference" && GetParam() != "cuda" && !is_jax) {  // which have no threads
    for (const int64_t threads : {0, -1}) BindFails(ErrorCode::kBadArgument, "", *Make({.threads = threads}), good);
  }
  if (GetParam() == "cpu") BindFails(ErrorCode::kIsaUnavailable, "", *Make({.isa = "sse9"}), good);
  if (const std::string why = WhyNotHere(); !why.empty()) GTEST_SKIP() << why;
  BothFail(ErrorCode::kTensorMismatch, "workspace", [](LaneCall& call) { call.workspace = {}; });
  if (workspace_bytes_ <= 64) GTEST_SKIP() << "this lane needs hardly any workspace";
  BothFail(ErrorCode::kTensorMismatch, "workspace", [](LaneCall& call) {
    call.workspace = {call.workspace.data() + 8, call.workspace.size()};
  });
}

TEST_P(CheckArgs, Plans_OfAnotherShapeOrForwardOnly) {
  PlanView other = view_;
  for (int64_t PlanView::*field : {&PlanView::batch, &PlanView::q_len, &PlanView::kv_len, &PlanView::num_q_heads}) {
    other = view_;
    other.*field += 1;
    BindFails(ErrorCode::kPlanMismatch, "", *lane_, {contract_, other, target_, kBoth});
  }
  PlanOptions options;
  options.disable = {"transpose"};
  const Result<PlanResult> forward_only = MakePlan(contract_, {}, target_, options);
  ASSERT_TRUE(forward_only.has_value());
  other = forward_only->plan.view();
  BindFails(ErrorCode::kPlanMismatch, "", *lane_, {contract_, other, target_, kBoth});
  if (const std::string why = WhyNotHere(); !why.empty()) GTEST_SKIP() << why;
  constexpr Pass kForwardAlone[] = {Pass::kForward};
  const Result<std::unique_ptr<BoundLane>> bound = lane_->Bind({contract_, other, target_, kForwardAlone});
  ASSERT_TRUE(bound.has_value()) << "a forward needs no transposed worklist: " << ToText(bound.error());
  EXPECT_TRUE((*bound)->Forward(forward_, call_).has_value());
}

TEST_P(CheckArgs, ShapesOfZero) {
  for (int64_t Shape::*field : {&Shape::batch, &Shape::q_len, &Shape::kv_len, &Shape::num_q_heads, &Shape::num_kv_heads,
                                &Shape::dim_qk, &Shape::dim_v}) {
    for (const int64_t value : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
      Contract bad = contract_;
      bad.shape.*field = value;
      BindFails(ErrorCode::kContractInvalid, "", *lane_, {bad, view_, target_, kBoth});
    }
  }
  Contract uneven = contract_;
  uneven.shape.num_kv_heads = 3;
  BindFails(ErrorCode::kContractInvalid, "shape.num_q_heads", *lane_, {uneven, view_, target_, kBoth});
}

}  // namespace
}  // namespace tessera
