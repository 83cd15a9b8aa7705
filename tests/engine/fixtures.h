// Small contracts, batches and made-up lanes for the dispatch tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/lane_table.h"
#include "engine/state.h"
#include "lanes/reference/reference.h"
#include "support/engine.h"
#include "support/own_terms.h"
#include "tessera/tessera.h"

namespace tessera {

struct Wish {
  std::string mask = "causal";
  int64_t len = 48;
  int64_t batch = 1;
  int64_t num_q_heads = 2;
  int64_t num_kv_heads = 1;
  double softcap = 0.0;
  bool sink_logits = false;
  DType dtype = DType::kF32;
};

// Run options for designated initialisers: every member has a default, so a test names only what it sets.
struct Ask {
  std::string lane = "auto";
  std::vector<std::string> exclude = {};
  bool strict = false;
  bool backward = false;
  bool row_max = false;
  Layout layout = Layout::kBhtd;
  std::optional<int64_t> threads = {};
  std::string input_source = {};
  std::string isa = "auto";

  operator RunOptions() const {  // NOLINT(google-explicit-constructor): stands for RunOptions at every call
    RunOptions options;
    options.lane = lane;
    options.exclude = exclude;
    options.strict = strict;
    options.backward = backward;
    options.row_max = row_max;
    options.layout = layout;
    options.threads = threads;
    options.isa = isa;
    options.input_source = input_source;
    return options;
  }
};

inline Contract SmallContract(const Wish& wish = {}) {
  Contract contract;
  contract.shape = {.batch = wish.batch,
                    .q_len = wish.len,
                    .kv_len = wish.len,
                    .num_q_heads = wish.num_q_heads,
                    .num_kv_heads = wish.num_kv_heads,
                    .dim_qk = 8,
                    .dim_v = 4,
                    .dtype = wish.dtype};
  Result<MaskExpr> mask = ParseMaskExpr(wish.mask, ".", &TestTerms());
  EXPECT_TRUE(mask.has_value()) << wish.mask << ": " << (mask ? "" : ToText(mask.error()));
  if (mask) contract.mask.heads = {*mask};
  contract.score = {.scale = 0.5, .softcap = wish.softcap, .sink_logits = wish.sink_logits};
  contract.tiles = {16, 16};
  contract.tiles_reason = "a small test";
  return contract;
}

// Routing that is valid for these lengths; nothing executes it.
inline Contract MakeRoutedContract(double softcap = 0.0) {
  Contract contract = SmallContract({.mask = "causal and blocks", .softcap = softcap});
  contract.routing = Routing{.top_n = 1};
  return contract;
}

// The same ids in every batch row: documents of the given lengths, the last one taking what is left.
inline Batch DocumentBatch(const Contract& contract, const std::vector<int64_t>& lengths) {
  IdRows ids{.rows = contract.shape.batch, .len = contract.shape.q_len, .values = {}};
  for (int64_t row = 0; row < ids.rows; ++row) {
    int32_t doc = 0;
    int64_t left = lengths.empty() ? ids.len : lengths[0];
    for (int64_t i = 0; i < ids.len; ++i) {
      if (left == 0) left = ++doc < static_cast<int32_t>(lengths.size()) ? lengths[static_cast<size_t>(doc)] : ids.len;
      ids.values.push_back(doc);
      --left;
    }
  }
  Batch batch;
  batch.doc_ids = std::move(ids);
  return batch;
}

inline Target TargetNamed(std::string_view name) {
  Result<Target> target = FindTarget(name);
  EXPECT_TRUE(target.has_value()) << name;
  return target ? *target : Target{};
}

// A lane that does what a test tells it and counts its calls. It computes with the reference lane.
class TestLane : public Lane {
 public:
  explicit TestLane(std::string_view name) : name_(name) {}
  std::string_view name() const override { return name_; }
  std::vector<std::string_view> Isas() const override { return isas; }
  Decision Decide(const Contract&, const Target&) const override { return on_contract; }
  Decision DecidePlan(const Contract&, const PlanView&, const Target&) const override { return on_plan; }
  Result<std::unique_ptr<BoundLane>> Bind(const BindRequest& request) const override;

  Decision on_contract = Decision::Yes();
  Decision on_plan = Decision::Yes();
  std::optional<int64_t> workspace_bytes;
  std::optional<Error> bind_error;
  std::optional<Error> forward_error;
  std::optional<Error> backward_error;
  int64_t extra_tiles = 0;
  std::vector<std::string_view> isas = {"wide", "narrow"};
  std::string asked_isa = "auto";  // as the table made it last
  bool compile_only = false;
  TargetKinds targets = KindBit(TargetKind::kCpu);
  mutable int binds = 0;
  mutable int forwards = 0;
  mutable int backwards = 0;

  // What a lane through XLA must tell, and what others do not.
  virtual BoundLane::Facts FactsOf(const BindRequest& request) const {
    BoundLane::Facts facts{"test_kernel", asked_isa == "auto" ? isas.front() : std::string_view(asked_isa), {}, {}};
    facts.device = HostDevice();
    // Where its row says it runs; host code stays host code.
    facts.device.kind = (targets & KindBit(request.target.kind)) != 0 ? ToText(request.target.kind) : "cpu";
    if (name_ != "xla_chunked") return facts;
    facts.device.plugin = "test.so";
    facts.device.platform = "test";
    facts.device.pjrt = "0.81";
    facts.device.guard = "not needed";
    for (const Pass pass : request.passes) {
      facts.programs.push_back({.pass = std::string(ToText(pass)),
                                .name = "test_" + ToHex(request.plan.class_key),
                                .source = "compiled",
                                .key = std::string(32, 'a'),
                                .compile_ns = 1,
                                .parts = 1});
    }
    return facts;
  }

 private:
  std::string name_;
};

class BoundTestLane final : public BoundLane {
 public:
  BoundTestLane(const TestLane& lane, const PlanView& plan, std::unique_ptr<BoundLane> reference, Facts facts)
      : lane_(lane), reference_(std::move(reference)), facts_(std::move(facts)) {
    if (lane_.name() != "call_jax") return;
    empty_forward_ = CountTiles(plan, Direction::kForward).empty;
    empty_backward_ = CountTiles(plan, Direction::kDkv).empty;
  }
  int64_t WorkspaceBytes(Pass pass) const override {
    return lane_.workspace_bytes.value_or(reference_->WorkspaceBytes(pass));
  }
  Result<int64_t> Forward(const ForwardArgs& args, const LaneCall& call) const override {
    ++lane_.forwards;
    if (lane_.forward_error) return tl::unexpected(*lane_.forward_error);
    Cross(call);
    return reference_->Forward(args, call).map([&](int64_t tiles) {
      return tiles + empty_forward_ + lane_.extra_tiles;
    });
  }
  Result<int64_t> Backward(const BackwardArgs& args, const LaneCall& call) const override {
    ++lane_.backwards;
    if (lane_.backward_error) return tl::unexpected(*lane_.backward_error);
    Cross(call);
    return reference_->Backward(args, call).map([&](int64_t tiles) { return tiles + empty_backward_; });
  }
  Facts Describe() const override { return facts_; }

 private:
  // A bridge says what crossed.
  void Cross(const LaneCall& call) const {
    if (lane_.name() != "call_jax" || call.crossing == nullptr) return;
    *call.crossing = {
        .runtime = "none", .interpreter = "host", .calls = 1, .bytes_in = 8, .bytes_out = 4, .copies_out = 1};
  }
  const TestLane& lane_;
  std::unique_ptr<BoundLane> reference_;
  Facts facts_;
  int64_t empty_forward_ = 0;  // of a bridge, which skips none
  int64_t empty_backward_ = 0;
};

inline Result<std::unique_ptr<BoundLane>> TestLane::Bind(const BindRequest& request) const {
  ++binds;
  if (bind_error) return tl::unexpected(*bind_error);
  Result<std::unique_ptr<BoundLane>> reference = MakeReferenceLane()->Bind(request);
  if (!reference) return reference;
  return std::make_unique<BoundTestLane>(*this, request.plan, std::move(*reference), FactsOf(request));
}

// The real table with made-up lanes in some rows, and an engine of its own.
class TestTable {
 public:
  TestTable() : rows_(LaneTable().begin(), LaneTable().end()) {}
  TestLane& Build(std::string_view name) { return Put(std::make_shared<TestLane>(name)); }

  // Takes the row of the lane's name, whichever target that is for.
  template <class Made>
  Made& Put(std::shared_ptr<Made> lane) {
    for (LaneRow& row : rows_) {
      if (row.name != lane->name()) continue;
      row.make = [lane](const LaneContext& context) {
        lane->asked_isa = context.isa;
        lane->compile_only = context.compile_only;
        return lane;
      };
      // Small contracts have head dims that no TPU kernel takes.
      if (row.name == "xla_pallas" || row.name == "splash") row.refuses = nullptr;
      row.memory = MemoryKind::kHost;
      if (row.determinism.empty()) row.determinism = "bitwise";
      lane->targets = row.targets;
      return *lane;
    }
    ADD_FAILURE() << "no lane " << lane->name();
    return *lane;
  }
  std::span<const LaneRow> rows() const { return rows_; }
  Engine MakeEngine(EngineOptions options = {}) const { return EngineAccess::Make(std::move(options), rows_); }

  RunOutcome Run(const Contract& contract, const Target& target, const RunOptions& options = {},
                 const Batch& batch = {}) const {
    const TensorMap inputs = MakeInputs(contract, 1, options.backward, options.layout);
    return tessera::Run(MakeEngine(), contract, batch, inputs, target, WithDigests(options));
  }
  RunOutcome Compile(const Contract& contract, const Target& target, const RunOptions& options = {},
                     const TensorMap& inputs = {}) const {
    return tessera::Compile(MakeEngine(), contract, {}, target, WithDigests(options), inputs);
  }

 private:
  std::vector<LaneRow> rows_;
};

inline std::string ErrorText(const RunOutcome& outcome) { return outcome.error ? ToText(*outcome.error) : ""; }

inline const Decision* FindDecision(const Receipt& receipt, std::string_view lane, std::string_view step) {
  for (const LaneDecision& d : receipt.decisions) {
    if (d.lane == lane && d.step == step) return &d.decision;
  }
  return nullptr;
}

// The same where there must be one.
inline Decision DecisionOf(const Receipt& receipt, std::string_view lane, std::string_view step) {
  const Decision* decision = FindDecision(receipt, lane, step);
  EXPECT_NE(decision, nullptr) << "no decision of " << lane << " on the " << step;
  return decision == nullptr ? Decision{} : *decision;
}

inline std::string Words(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) text += v.field + ": " + v.expected + "\n";
  return text;
}

// A good receipt agrees with itself and comes back from its JSON exactly.
inline void ExpectSound(const Receipt& receipt) {
  EXPECT_EQ(Words(CheckReceipt(receipt, &TestTerms())), "") << ToJson(receipt);
  Result<Receipt> again = ParseReceipt(ToJson(receipt), &TestTerms());
  ASSERT_TRUE(again.has_value()) << ToText(again.error());
  EXPECT_EQ(ToJson(*again), ToJson(receipt));
}

}  // namespace tessera
