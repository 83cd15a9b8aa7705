// The bridge with JAX in it, where script/setup --peers made an environment: against what contracts mean, and what it
// does to the process around it.
#include <clocale>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "bridge/bridge_fixture.h"
#include "bridge_health.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"

namespace tessera {
namespace {

class WithJax : public testing::Test {
 protected:
  void SetUp() override {
    if (PeersPython().empty()) GTEST_SKIP() << kNoPeers;
  }
  // Never destroyed: what JAX started may outlive main.
  static const Engine& TheEngine() {
    static const Engine& engine = *new Engine(EngineWith(PeersPython()));
    return engine;
  }
  static TensorMap RunChecked(const Contract& contract, const Batch& batch, const TensorMap& inputs) {
    RunOutcome outcome = RunBridge(TheEngine(), contract, batch, inputs);
    EXPECT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    if (outcome.error) return {};
    const Receipt& r = outcome.receipt;
    EXPECT_TRUE(CheckReceipt(r).empty()) << ToJson(r);
    EXPECT_EQ(r.executed, "call_jax");
    EXPECT_EQ(r.runtime_mode, "bridge");
    EXPECT_EQ(r.owner, "call_jax");
    EXPECT_EQ(r.crossing.interpreter, "embedded");
    EXPECT_EQ(r.crossing.calls, 2);
    // Every pair was computed, and the receipt does not claim less.
    EXPECT_EQ(r.tiles_executed, r.tiles.empty + r.tiles.partial + r.tiles.full);
    EXPECT_EQ(r.tiles_executed_backward, r.tiles_backward.empty + r.tiles_backward.partial + r.tiles_backward.full);
    const Result<CheckReport> report =
        CheckOutputs(contract, batch, inputs, outcome.outputs, {.arithmetic = Arithmetic::Single()});
    EXPECT_TRUE(report.has_value() && report->pass) << (report ? report->text : ToText(report.error()));
    return std::move(outcome.outputs);
  }
};

// First in this file, so that it sees the start: whoever runs one test alone runs this one too.
TEST_F(WithJax, Start_KeepsTheHostsSignalsAndLocale) {
  const auto handler = [](int) {};
  struct sigaction mine = {};
  mine.sa_handler = handler;
  struct sigaction before = {};
  ASSERT_EQ(sigaction(SIGINT, &mine, &before), 0);
  const std::string locale = setlocale(LC_CTYPE, nullptr);
  const Contract contract = BridgeContract("causal");
  RunChecked(contract, {}, MakeInputs(contract, 1, true));
  for (const int number : {SIGINT, SIGPIPE, SIGXFSZ, SIGSEGV, SIGTERM}) {
    struct sigaction now = {};
    ASSERT_EQ(sigaction(number, nullptr, &now), 0);
    EXPECT_EQ(now.sa_handler, number == SIGINT ? mine.sa_handler : SIG_DFL) << number;
  }
  EXPECT_EQ(locale, setlocale(LC_CTYPE, nullptr));
  sigaction(SIGINT, &before, nullptr);
}

TEST_F(WithJax, EveryKindOfContract_IsWhatItMeans) {
  Proves("R43");
  const uint64_t seed = PrintedSeed();
  Batch documents;
  documents.doc_lengths = IntRows{{20, 10}, {1, 36}};    // the first row ends in padding
  documents.valid_tokens = std::vector<int64_t>{30, 0};  // the second is empty on purpose
  const Batch none;
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    SCOPED_TRACE(dtype);
    const Contract plain = BridgeContract("causal", "[score]\nsoftcap = 5.0\nsink_logits = true\n", dtype);
    RunChecked(plain, none, MakeInputs(plain, seed, true));
  }
  const Contract packed = BridgeContract("causal and documents and valid and (window(5, 0) or sink(2, document))");
  TensorMap inputs = MakeInputs(packed, seed, true);
  const TensorMap clean = RunChecked(packed, documents, inputs);
  // Padding is inert, whatever is in it.
  for (const char* name : {"q", "k", "v", "do"}) {
    Tensor& tensor = inputs[name];
    const int64_t dim = tensor.shape[3];
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < tensor.shape[1]; ++h) {
        for (int64_t t = b == 0 ? 30 : 0; t < 37; ++t) {
          for (int64_t d = 0; d < dim; ++d) {
            tensor.Set(((b * tensor.shape[1] + h) * 37 + t) * dim + d, d % 2 == 0 ? NAN : INFINITY);
          }
        }
      }
    }
  }
  const RunOutcome poisoned = RunBridge(TheEngine(), packed, documents, inputs);
  ASSERT_FALSE(poisoned.error.has_value()) << ToText(*poisoned.error);
  for (const auto& [name, tensor] : clean) EXPECT_EQ(poisoned.outputs.at(name).bytes, tensor.bytes) << name;
}

TEST_F(WithJax, ChangedSoftcap_TakesEffect) {
  Proves("R56");
  std::vector<Tensor> outputs;
  for (const char* softcap : {"30.0", "0.5", "30.0"}) {
    const Contract contract = BridgeContract("causal", std::string("[score]\nsoftcap = ") + softcap + "\n");
    outputs.push_back(RunChecked(contract, {}, MakeInputs(contract, 1, true)).at("o"));
  }
  EXPECT_NE(outputs[0].bytes, outputs[1].bytes);
  EXPECT_EQ(outputs[0].bytes, outputs[2].bytes);
}

// Tensors at multiples of 64 bytes are read where they lie; others and strided ones are copied, and counted.
TEST_F(WithJax, AlignedInputs_AreNotCopied) {
  Proves("R52");
  const Contract contract = BridgeContract("causal");
  const Shape& s = contract.shape;
  Result<Attention> attention =
      TheEngine().Prepare(contract, FindTarget("cpu").value(), {.lane = "call_jax", .backward = true});
  ASSERT_TRUE(attention.has_value());
  Result<PlanResult> plan = attention->Plan({});
  ASSERT_TRUE(plan.has_value());
  Result<Bound> bound = attention->Bind(std::move(plan->plan));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  const size_t q_size = static_cast<size_t>(s.batch * s.num_q_heads * s.q_len * s.dim_qk);
  const size_t k_size = static_cast<size_t>(s.batch * s.num_kv_heads * s.kv_len * s.dim_qk);
  const size_t v_size = static_cast<size_t>(s.batch * s.num_kv_heads * s.kv_len * s.dim_v);
  const size_t o_size = static_cast<size_t>(s.batch * s.num_q_heads * s.q_len * s.dim_v);
  const auto room = [](size_t floats) { return (floats + 31) / 16 * 16; };  // whole lines of 64 bytes, and one more
  std::vector<float> memory(16 + room(q_size) + room(k_size) + room(v_size) + room(o_size), 0.25F);
  void* at = memory.data();
  size_t left = memory.size() * sizeof(float);
  float* q = static_cast<float*>(std::align(64, 64, at, left));
  float* k = q + room(q_size);
  float* v = k + room(k_size);
  float* o = v + room(v_size);
  for (const size_t off : {size_t{0}, size_t{1}}) {
    RunTensors tensors;
    tensors.q = DenseView(q + off, {s.batch, s.num_q_heads, s.q_len, s.dim_qk});
    tensors.k = DenseView(k, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk});
    tensors.v = DenseView(v, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}, off == 0 ? Layout::kBhtd : Layout::kBthd);
    tensors.o = DenseView(o, {s.batch, s.num_q_heads, s.q_len, s.dim_v}, Layout::kBthd);
    Receipt receipt;
    ASSERT_TRUE(bound->Forward(tensors, {.receipt = &receipt}).has_value());
    EXPECT_EQ(receipt.crossing.bytes_in, static_cast<int64_t>((q_size + k_size + v_size) * sizeof(float)));
    EXPECT_EQ(receipt.crossing.copied_in, off == 0 ? 0 : static_cast<int64_t>((q_size + v_size) * sizeof(float)));
    EXPECT_EQ(receipt.crossing.copies_in, off == 0 ? 0 : 2);
    EXPECT_EQ(receipt.crossing.copies_out, 1);
    for (size_t i = 0; i < o_size; ++i) ASSERT_FLOAT_EQ(o[i], 0.25F) << i;  // the mean of equal values
  }
  // A child that was forked has no interpreter, and is told so.
  RunTensors tensors;
  tensors.q = DenseView(q, {s.batch, s.num_q_heads, s.q_len, s.dim_qk});
  tensors.k = DenseView(k, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk});
  tensors.v = DenseView(v, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v});
  tensors.o = DenseView(o, {s.batch, s.num_q_heads, s.q_len, s.dim_v});
  const pid_t child = fork();
  if (child == 0) {
    const Status refused = bound->Forward(tensors);
    _exit(!refused && refused.error().code == ErrorCode::kBridgeFailed ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(bound->Forward(tensors).has_value());
  // What is wrong with tensors is said before JAX is asked.
  const Status bad = bound->Forward(RunTensors{});
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, ErrorCode::kTensorMismatch);
}

TEST_F(WithJax, EightThreads_GetTheSameBits) {
  const Contract contract = BridgeContract("causal");
  const TensorMap inputs = MakeInputs(contract, 3, true);
  const TensorMap want = RunChecked(contract, {}, inputs);
  std::vector<TensorMap> got(8);
  std::vector<std::thread> threads;
  for (TensorMap& one : got) {
    threads.emplace_back([&] { one = RunBridge(TheEngine(), contract, {}, inputs).outputs; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const TensorMap& one : got) EXPECT_EQ(one, want);
}

TEST_F(WithJax, HealthReceipt_HasTheSixCases) {
  Proves("R55");
  Result<program::BridgeHealth> health = program::CheckBridge(TheEngine());
  ASSERT_TRUE(health.has_value()) << ToText(health.error());
  EXPECT_TRUE(health->IsHealthy()) << program::ToJson(*health);
  std::vector<std::string> names;
  for (const program::BridgeCase& one : health->cases) {
    names.push_back(one.name);
    EXPECT_TRUE(one.pass) << one.name << ": " << one.note;
    EXPECT_EQ(one.receipts.empty(), one.name == "enable_splash_attention");
    for (const Receipt& receipt : one.receipts) EXPECT_EQ(receipt.executed, "call_jax") << one.name;
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"enable_splash_attention", "forward_bf16_attention", "backward_gradient_flow",
                                      "doc_ids_masking", "softcap_reconfiguration", "gpt_model_integration"}));
  // One NaN anywhere, or one case that failed, and it is not.
  health->cases[3].nans = 1;
  EXPECT_FALSE(health->IsHealthy());
  health->cases[3].nans = 0;
  health->cases[5].pass = false;
  EXPECT_FALSE(health->IsHealthy());
}

TEST_F(WithJax, AnotherInterpreterOrDevice_IsRefused) {
  const Contract contract = BridgeContract("causal");
  const TensorMap inputs = MakeInputs(contract, 3, true);
  RunChecked(contract, {}, inputs);
  const TemporaryFolder folder;
  const RunOutcome other = RunBridge(EngineWith(FakePython(folder, "")), contract, {}, inputs);
  ASSERT_TRUE(other.error.has_value());
  EXPECT_NE(ToText(*other.error).find("call_jax.start"), std::string::npos) << ToText(*other.error);
  const RunOutcome tpu = RunBridge(TheEngine(), contract, {}, inputs, "v6e");
  ASSERT_TRUE(tpu.error.has_value());
  EXPECT_NE(ToText(*tpu.error).find("call_jax.no_device"), std::string::npos) << ToText(*tpu.error);
  EXPECT_TRUE(CheckReceipt(tpu.receipt).empty()) << ToJson(tpu.receipt);
}

}  // namespace
}  // namespace tessera
