// Runs on memory of the caller's: the same bits and digests as a run on tensors by name, in any strides, with a plan
// made before or not, forward and backward together or apart; and what is refused before anything is touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine/fixtures.h"

namespace tessera {
namespace {

constexpr std::byte kUntouched{0xa5};

// A [B,H,T,D] tensor in memory with room between its rows, heads and batch rows.
struct Strided {
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  TensorRef ref;

  std::byte* Row(int64_t b, int64_t h, int64_t t) {
    const int64_t at = b * ref.batch_stride + h * ref.head_stride + t * ref.token_stride;
    return ref.data + at * BytesOf(ref.type);
  }
};

struct Gaps {
  int64_t row = 0;
  int64_t head = 0;
  int64_t batch = 0;
  bool tokens_first = false;  // [B,T,H,D] instead of [B,H,T,D]
};

Strided MakeStrided(ElementType type, const std::vector<int64_t>& shape, const Gaps& gaps) {
  Strided out{.shape = shape, .bytes = {}, .ref = {}};
  out.ref.type = type;
  const int64_t row = shape[3] + gaps.row;
  const int64_t inner = gaps.tokens_first ? shape[1] : shape[2];
  const int64_t outer = gaps.tokens_first ? shape[2] : shape[1];
  const int64_t step = inner * row + gaps.head;
  out.ref.head_stride = gaps.tokens_first ? row : step;
  out.ref.token_stride = gaps.tokens_first ? step : row;
  out.ref.batch_stride = outer * step + gaps.batch;
  out.bytes.assign(static_cast<size_t>(shape[0] * out.ref.batch_stride * BytesOf(type)), kUntouched);
  out.ref.data = out.bytes.data();
  return out;
}

template <class Visit>
void ForEachRow(Strided& tensor, Visit visit) {
  int64_t row = 0;
  for (int64_t b = 0; b < tensor.shape[0]; ++b) {
    for (int64_t h = 0; h < tensor.shape[1]; ++h) {
      for (int64_t t = 0; t < tensor.shape[2]; ++t) visit(tensor.Row(b, h, t), row++);
    }
  }
}

// Every tensor of a run, strided; outputs begin as kUntouched.
class Memory {
 public:
  Memory(const Contract& contract, const TensorMap& inputs, const Gaps& gaps) {
    const Shape& s = contract.shape;
    for (const auto& [name, tensor] : inputs) {
      if (tensor.shape.size() == 4) {
        Strided strided = MakeStrided(tensor.type, tensor.shape, gaps);
        const int64_t row_bytes = tensor.shape[3] * BytesOf(tensor.type);
        ForEachRow(strided, [&, &from = tensor](std::byte* to, int64_t row) {
          std::copy_n(from.bytes.data() + row * row_bytes, row_bytes, to);
        });
        strided_[name] = std::move(strided);
      } else {
        sink_logits_.resize(static_cast<size_t>(s.num_q_heads));
        std::copy_n(tensor.bytes.data(), tensor.bytes.size(), reinterpret_cast<std::byte*>(sink_logits_.data()));
      }
    }
    const ElementType type = ToElementType(s.dtype);
    strided_["o"] = MakeStrided(type, {s.batch, s.num_q_heads, s.q_len, s.dim_v}, gaps);
    strided_["dq"] = MakeStrided(type, {s.batch, s.num_q_heads, s.q_len, s.dim_qk}, gaps);
    strided_["dk"] = MakeStrided(type, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}, gaps);
    strided_["dv"] = MakeStrided(type, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}, gaps);
    const size_t rows = static_cast<size_t>(s.batch * s.num_q_heads * s.q_len);
    lse_.assign(rows, -7.0f);
    max_.assign(rows, -7.0f);
    dsink_logits_.assign(sink_logits_.size(), -7.0f);
  }

  RunTensors Tensors() {
    RunTensors t;
    t.q = strided_["q"].ref;
    t.k = strided_["k"].ref;
    t.v = strided_["v"].ref;
    t.dout = strided_["do"].ref;
    t.sink_logits = sink_logits_;
    t.o = strided_["o"].ref;
    t.lse = lse_;
    t.row_max = max_;
    t.dq = strided_["dq"].ref;
    t.dk = strided_["dk"].ref;
    t.dv = strided_["dv"].ref;
    t.dsink_logits = dsink_logits_;
    return t;
  }

  // The bits are those of `want`, and what lies between the rows was never written.
  void ExpectEquals(const TensorMap& want) {
    for (const auto& [name, tensor] : want) {
      SCOPED_TRACE(name);
      if (tensor.shape.size() != 4) {
        const std::vector<float>& got = name == "lse" ? lse_ : name == "max" ? max_ : dsink_logits_;
        EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), std::as_bytes(std::span(got)).begin()));
        continue;
      }
      Strided& got = strided_[name];
      const int64_t row_bytes = tensor.shape[3] * BytesOf(tensor.type);
      ForEachRow(got, [&, &wanted = tensor](std::byte* at, int64_t row) {
        EXPECT_TRUE(std::equal(at, at + row_bytes, wanted.bytes.data() + row * row_bytes)) << "row " << row;
        std::fill_n(at, row_bytes, kUntouched);
      });
      EXPECT_EQ(std::count(got.bytes.begin(), got.bytes.end(), kUntouched), std::ssize(got.bytes));
    }
  }

  bool IsUntouched(const std::string& name) {
    const std::vector<std::byte>& bytes = strided_[name].bytes;
    return std::count(bytes.begin(), bytes.end(), kUntouched) == std::ssize(bytes);
  }

 private:
  std::map<std::string, Strided> strided_;
  std::vector<float> sink_logits_, lse_, max_, dsink_logits_;
};

const Gaps kGaps[] = {{}, {.tokens_first = true}, {3, 5, 7}, {1, 9, 2, true}};

Contract SinkContract(DType dtype) {
  return SmallContract({.mask = "causal and documents",
                        .len = 37,
                        .batch = 2,
                        .num_q_heads = 4,
                        .num_kv_heads = 2,
                        .softcap = 6,
                        .sink_logits = true,
                        .dtype = dtype});
}

std::map<std::string, std::string> FieldsOf(const RunOutcome& outcome) {
  std::map<std::string, std::string> fields;
  if (!outcome.error) return fields;
  for (const Violation& v : outcome.error->violations) fields[v.field] += v.expected;
  return fields;
}

TEST(RunStrided, AnyStrides_GiveTheBitsAndDigestsOfDenseTensors) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Contract contract = SinkContract(dtype);
    const Batch batch = DocumentBatch(contract, {11, 5});
    const TensorMap inputs = MakeInputs(contract, 3, true);
    const RunOptions options = Ask{.backward = true, .row_max = true};
    const RunOutcome dense = tessera::Run(contract, batch, inputs, TargetNamed("cpu"), options);
    ASSERT_FALSE(dense.error.has_value()) << ErrorText(dense);
    for (const Gaps& gaps : kGaps) {
      SCOPED_TRACE(testing::Message() << ToText(dtype) << " gaps " << gaps.row << (gaps.tokens_first ? " bthd" : ""));
      Memory memory(contract, inputs, gaps);
      const RunOutcome strided = RunStrided(contract, batch, memory.Tensors(), TargetNamed("cpu"), options);
      ASSERT_FALSE(strided.error.has_value()) << ErrorText(strided);
      ExpectSound(strided.receipt);
      EXPECT_TRUE(strided.outputs.empty());
      EXPECT_EQ(strided.receipt.input_digest, dense.receipt.input_digest);
      EXPECT_EQ(strided.receipt.output_digest, dense.receipt.output_digest);
      EXPECT_EQ(strided.receipt.options, dense.receipt.options);
      memory.ExpectEquals(dense.outputs);
    }
  }
}

TEST(RunStrided, BackwardAlone_GivesTheBitsOfBothTogether) {
  const Contract contract = SinkContract(DType::kF32);
  const Batch batch = DocumentBatch(contract, {20});
  const TensorMap inputs = MakeInputs(contract, 4, true);
  const RunOutcome both = tessera::Run(contract, batch, inputs, TargetNamed("cpu"), Ask{.backward = true});
  ASSERT_FALSE(both.error.has_value()) << ErrorText(both);

  Memory memory(contract, inputs, {2, 0, 0});
  RunTensors tensors = memory.Tensors();
  tensors.row_max = {};
  RunOptions options;
  ASSERT_FALSE(RunStrided(contract, batch, tensors, TargetNamed("cpu"), options).error.has_value());
  options.forward = false;
  options.backward = true;
  const RunOutcome backward = RunStrided(contract, batch, tensors, TargetNamed("cpu"), options);
  ASSERT_FALSE(backward.error.has_value()) << ErrorText(backward);
  ExpectSound(backward.receipt);
  EXPECT_EQ(backward.receipt.options.at("forward"), "false");
  EXPECT_EQ(backward.receipt.tiles_executed, 0);
  EXPECT_GT(backward.receipt.tiles_executed_backward, 0);
  memory.ExpectEquals(both.outputs);

  // The same by name: o and lse are inputs then.
  TensorMap named = inputs;
  named["o"] = both.outputs.at("o");
  named["lse"] = both.outputs.at("lse");
  const RunOutcome by_name = tessera::Run(contract, batch, named, TargetNamed("cpu"), options);
  ASSERT_FALSE(by_name.error.has_value()) << ErrorText(by_name);
  ExpectSound(by_name.receipt);
  EXPECT_EQ(by_name.receipt.input_digest, backward.receipt.input_digest);
  EXPECT_EQ(by_name.receipt.output_digest, backward.receipt.output_digest);
  EXPECT_EQ(by_name.outputs.count("o"), 0u);
  EXPECT_EQ(by_name.outputs.at("dk"), both.outputs.at("dk"));
}

TEST(Bound, PlanMadeBefore_GivesTheSameBits) {
  const Contract contract = SinkContract(DType::kF32);
  const Batch batch = DocumentBatch(contract, {20});
  const TensorMap inputs = MakeInputs(contract, 5, true);
  const RunOptions options = Ask{.backward = true, .row_max = true};
  const RunOutcome dense = tessera::Run(contract, batch, inputs, TargetNamed("cpu"), options);
  const Result<Attention> attention = TestEngine().Prepare(contract, TargetNamed("cpu"), options);
  ASSERT_TRUE(attention.has_value()) << ToText(attention.error());
  for (const Batch* known : {&batch, static_cast<const Batch*>(nullptr)}) {
    Result<PlanResult> made = MakePlan(contract, batch, TargetNamed("cpu"));
    ASSERT_TRUE(made.has_value()) << ToText(made.error());
    const Result<Bound> bound = attention->Bind(std::move(made->plan));
    ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
    Memory memory(contract, inputs, {});
    Receipt forward;
    Receipt backward;
    ASSERT_TRUE(bound->Forward(memory.Tensors(), {.receipt = &forward, .digests = true, .batch = known}).has_value());
    ASSERT_TRUE(bound->Backward(memory.Tensors(), {.receipt = &backward, .digests = true, .batch = known}).has_value());
    for (const Receipt* receipt : {&forward, &backward}) {
      ExpectSound(*receipt);
      EXPECT_EQ(receipt->plan_fingerprint, dense.receipt.plan_fingerprint);
      EXPECT_EQ(receipt->options.at("plan"), "given");
      EXPECT_EQ(receipt->batch_digest, known != nullptr ? dense.receipt.batch_digest : kNotTaken);
    }
    EXPECT_EQ(forward.options.at("backward"), "false");
    EXPECT_EQ(backward.options.at("forward"), "false");
    memory.ExpectEquals(dense.outputs);
  }
}

// Nothing is copied between memories: tensors of a GPU are a lane's refusal by reason, one tensor elsewhere an error.
TEST(RunStrided, TensorsInAnotherMemory_AreRefusedByReasonAndNotTouched) {
  const Contract contract = SmallContract();
  Memory memory(contract, MakeInputs(contract, 1, false), {});
  RunTensors tensors = memory.Tensors();
  tensors.k.space = {MemoryKind::kGpu, 0};
  const RunOutcome mixed = RunStrided(contract, {}, tensors, TargetNamed("cpu"));
  ASSERT_TRUE(mixed.error.has_value());
  EXPECT_EQ(mixed.error->code, ErrorCode::kTensorMismatch);
  EXPECT_EQ(mixed.error->violations.at(0).field, "k");
  for (TensorRef* ref : {&tensors.q, &tensors.v, &tensors.o}) ref->space = {MemoryKind::kGpu, 0};
  const RunOutcome all = RunStrided(contract, {}, tensors, TargetNamed("cpu"));
  ASSERT_TRUE(all.error.has_value());
  EXPECT_EQ(all.error->code, ErrorCode::kLaneRefused);
  EXPECT_EQ(DecisionOf(all.receipt, "cpu", "contract").reason, ReasonCode::kMemorySpace);
  EXPECT_EQ(all.receipt.options.at("memory"), "gpu:0");
  ExpectSound(all.receipt);
}

TEST(Bound, BadTensors_AreAnErrorAndAReceiptOfIt) {
  const Contract contract = SmallContract();
  const Result<Attention> attention = TestEngine().Prepare(contract, TargetNamed("cpu"));
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan({})->plan));
  ASSERT_TRUE(bound.has_value());
  Memory memory(contract, MakeInputs(contract, 1, false), {});
  RunTensors bad = memory.Tensors();
  bad.k.data = nullptr;
  Receipt receipt;
  const Status failed = bound->Forward(bad, {.receipt = &receipt, .digests = true});
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kTensorMismatch);
  EXPECT_EQ(receipt.failed_at, "forward");
  EXPECT_FALSE(receipt.ok);
  ExpectSound(receipt);
}

TEST(RunStrided, BadTensors_AreAllListedAndNothingIsTouched) {
  const Contract contract = SmallContract({.batch = 2});
  const TensorMap inputs = MakeInputs(contract, 1, true);
  Memory memory(contract, inputs, {});
  RunTensors bad = memory.Tensors();
  bad.q.type = ElementType::kBf16;
  bad.k.data = nullptr;
  bad.v.token_stride = -1;
  bad.dout.batch_stride = INT64_MAX / 2;
  bad.o.type = ElementType::kI32;
  bad.lse = bad.lse.first(3);
  bad.dq.token_stride = 7;  // rows have 8 elements
  bad.dk.data += 2;
  float logits[2] = {};
  bad.sink_logits = logits;
  bad.dsink_logits = logits;
  const RunOutcome outcome = RunStrided(contract, {}, bad, TargetNamed("cpu"), Ask{.backward = true});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kTensorMismatch);
  const std::map<std::string, std::string> fields = FieldsOf(outcome);
  for (const char* name : {"q", "k", "v", "do", "o", "lse", "dq", "dk", "sink_logits", "dsink_logits"}) {
    EXPECT_EQ(fields.count(name), 1u) << name;
  }
  EXPECT_EQ(fields.size(), 10u) << ErrorText(outcome);
  for (const char* name : {"o", "dq", "dk", "dv"}) EXPECT_TRUE(memory.IsUntouched(name)) << name;
  EXPECT_EQ(outcome.receipt.failed_at, "inputs");
  ExpectSound(outcome.receipt);
}

TEST(RunStrided, Outputs_MayNotOverlapButInputsMay) {
  const Contract contract = SmallContract({.num_q_heads = 2, .num_kv_heads = 2});
  Memory memory(contract, MakeInputs(contract, 1, true), {});
  RunTensors tensors = memory.Tensors();
  tensors.k.head_stride = 0;  // one key head for all: a broadcast
  tensors.v.token_stride = 0;
  EXPECT_FALSE(RunStrided(contract, {}, tensors, TargetNamed("cpu")).error.has_value());

  RunTensors broadcast = tensors;
  broadcast.o.head_stride = 0;
  EXPECT_EQ(FieldsOf(RunStrided(contract, {}, broadcast, TargetNamed("cpu"))).count("o"), 1u);
  RunTensors in_place = tensors;
  in_place.o = in_place.q;
  in_place.o.token_stride = contract.shape.dim_v;
  EXPECT_NE(FieldsOf(RunStrided(contract, {}, in_place, TargetNamed("cpu")))["o"].find("shares some with q"),
            std::string::npos);
  RunTensors same = tensors;
  same.row_max = same.lse;
  EXPECT_EQ(FieldsOf(RunStrided(contract, {}, same, TargetNamed("cpu"))).size(), 1u);
}

TEST(RunStrided, OutputsInOneBuffer_MayInterleaveButNotTouch) {
  Contract contract = SmallContract({.num_q_heads = 4, .num_kv_heads = 2});
  contract.shape.dim_v = contract.shape.dim_qk;
  const Shape& s = contract.shape;
  Memory memory(contract, MakeInputs(contract, 1, true), {});
  RunTensors tensors = memory.Tensors();
  const RunOptions options = Ask{.backward = true};
  ASSERT_FALSE(RunStrided(contract, {}, tensors, TargetNamed("cpu"), options).error.has_value());
  // dq, dk and dv as the heads of one [B,T,8,D].
  const int64_t heads = s.num_q_heads + 2 * s.num_kv_heads;
  std::vector<float> fused(static_cast<size_t>(s.batch * s.q_len * heads * s.dim_qk) + 1, -7.0F);
  const auto slice = [&](int64_t head) {
    return TensorRef{.type = ElementType::kF32,
                     .data = reinterpret_cast<std::byte*>(fused.data() + head * s.dim_qk),
                     .batch_stride = s.q_len * heads * s.dim_qk,
                     .head_stride = s.dim_qk,
                     .token_stride = heads * s.dim_qk};
  };
  tensors.dq = slice(0);
  tensors.dk = slice(s.num_q_heads);
  tensors.dv = slice(s.num_q_heads + s.num_kv_heads);
  const RunOutcome good = RunStrided(contract, {}, tensors, TargetNamed("cpu"), options);
  EXPECT_FALSE(good.error.has_value()) << ErrorText(good);
  std::fill(fused.begin(), fused.end(), -7.0F);
  tensors.dk.data += 4;  // its last value is dv's first
  const RunOutcome bad = RunStrided(contract, {}, tensors, TargetNamed("cpu"), options);
  EXPECT_EQ(FieldsOf(bad)["dk"], "memory of its own expected, but it shares some with dv") << ErrorText(bad);
  EXPECT_EQ(std::count(fused.begin(), fused.end(), -7.0F), std::ssize(fused));
}

// What a run does not use is not looked at: one set of tensors serves a forward and a later backward.
TEST(RunStrided, UnusedTensors_AreIgnored) {
  const Contract contract = SmallContract();
  Memory memory(contract, MakeInputs(contract, 1, true), {});
  RunTensors tensors = memory.Tensors();
  tensors.dq.token_stride = -5;
  tensors.dout.data = nullptr;
  EXPECT_FALSE(RunStrided(contract, {}, tensors, TargetNamed("cpu")).error.has_value());
  tensors.lse = {};
  EXPECT_FALSE(RunStrided(contract, {}, tensors, TargetNamed("cpu")).error.has_value());
}

TEST(Run, NeitherForwardNorBackward_IsRefused) {
  const Contract contract = SmallContract();
  RunOptions options;
  options.forward = false;
  const RunOutcome outcome = tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"), options);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kBadArgument);
  ExpectSound(outcome.receipt);
}

}  // namespace
}  // namespace tessera
