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
#include "dispatch/run.h"
#include "lanes/reference/reference.h"
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

inline Contract MakeContract(const Wish& wish = {}) {
  Contract contract;
  contract.shape = {.batch = wish.batch,
                    .q_len = wish.len,
                    .kv_len = wish.len,
                    .num_q_heads = wish.num_q_heads,
                    .num_kv_heads = wish.num_kv_heads,
                    .dim_qk = 8,
                    .dim_v = 4,
                    .dtype = wish.dtype};
  Result<MaskExpr> mask = ParseMaskExpr(wish.mask);
  EXPECT_TRUE(mask.has_value()) << wish.mask << ": " << (mask ? "" : ToText(mask.error()));
  if (mask) contract.mask.heads = {*mask};
  contract.score = {.scale = 0.5, .softcap = wish.softcap, .sink_logits = wish.sink_logits};
  contract.tiles = {16, 16};
  contract.tiles_reason = "a small test";
  return contract;
}

// Routing that is valid for these lengths; nothing executes it.
inline Contract MakeRoutedContract(double softcap = 0.0) {
  Contract contract = MakeContract({.mask = "causal and blocks", .softcap = softcap});
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
  Decision Decide(const Contract&, const Target&, const XlaOptions&) const override { return on_contract; }
  Decision DecidePlan(const Contract&, const PlanView&, const Target&, const XlaOptions&) const override {
    return on_plan;
  }
  int64_t WorkspaceBytes(const LaneRequest& request, Pass pass) const override {
    return workspace_bytes.value_or(ReferenceLane().WorkspaceBytes(request, pass));
  }
  Result<RunStats> Forward(const LaneRequest& request, const ForwardArgs& args) const override {
    ++forwards;
    if (forward_error) return tl::unexpected(*forward_error);
    Result<RunStats> stats = ReferenceLane().Forward(Plain(request), args);
    last_isa = request.isa;
    if (stats) stats->kernel = "test_kernel";
    if (stats) stats->isa = request.isa == "auto" ? isas.front() : request.isa;
    if (stats) stats->tiles_executed += extra_tiles;
    if (stats) FillProgram(request, *stats);
    return stats;
  }
  Result<RunStats> Backward(const LaneRequest& request, const BackwardArgs& args) const override {
    ++backwards;
    if (backward_error) return tl::unexpected(*backward_error);
    Result<RunStats> stats = ReferenceLane().Backward(Plain(request), args);
    if (stats) FillProgram(request, *stats);
    return stats;
  }

  Decision on_contract = Decision::Yes();
  Decision on_plan = Decision::Yes();
  std::optional<int64_t> workspace_bytes;
  std::optional<Error> forward_error;
  std::optional<Error> backward_error;
  int64_t extra_tiles = 0;
  std::vector<std::string_view> isas = {"wide", "narrow"};
  mutable std::string last_isa;  // as the last forward was asked
  mutable int forwards = 0;
  mutable int backwards = 0;

 private:
  // What a lane through XLA must tell.
  void FillProgram(const LaneRequest& request, RunStats& stats) const {
    if (name_ != "xla_chunked") return;
    stats.xla = {
        .plugin = "test.so", .platform = "test", .pjrt = "0.81", .device_kind = "Test device", .guard = "not needed"};
    stats.program = {.name = "test_" + ToHex(request.plan->class_key),
                     .source = "compiled",
                     .key = std::string(32, 'a'),
                     .parts = 1};
  }

  static LaneRequest Plain(LaneRequest request) {
    request.isa = "auto";
    return request;
  }
  std::string_view name_;
};

// The real table with made-up lanes in some rows.
class TestTable {
 public:
  TestTable() : rows_(LaneTable().begin(), LaneTable().end()) {}
  TestLane& Build(std::string_view name) {
    for (LaneRow& row : rows_) {
      if (row.name != name) continue;
      lanes_.push_back(std::make_unique<TestLane>(row.name));
      row.lane = lanes_.back().get();
      if (row.determinism.empty()) row.determinism = "bitwise";
      return *lanes_.back();
    }
    ADD_FAILURE() << "no lane " << name;
    lanes_.push_back(std::make_unique<TestLane>(name));
    return *lanes_.back();
  }
  std::span<const LaneRow> rows() const { return rows_; }

  RunOutcome Run(const Contract& contract, const Target& target, const RunOptions& options = {},
                 const Batch& batch = {}) const {
    const TensorMap inputs = MakeInputs(contract, 1, options.backward, options.layout);
    return RunOn({.table = rows_,
                  .contract = contract,
                  .batch = &batch,
                  .target = target,
                  .options = options,
                  .inputs = &inputs});
  }

 private:
  std::vector<LaneRow> rows_;
  std::vector<std::unique_ptr<TestLane>> lanes_;
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
  EXPECT_EQ(Words(CheckReceipt(receipt)), "") << ToJson(receipt);
  Result<Receipt> again = ParseReceipt(ToJson(receipt));
  ASSERT_TRUE(again.has_value()) << ToText(again.error());
  EXPECT_EQ(ToJson(*again), ToJson(receipt));
}

}  // namespace tessera
