#include "bridge_health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "gpt_step.h"
#include "json_text.h"

namespace tessera::program {
namespace {

constexpr const char* kLane = "call_jax";

Result<Contract> MakeContract(const std::string& mask, const std::string& dtype, double softcap) {
  return ParseContract(
      fmt::format("version = 1\n[shape]\nbatch = 2\nq_len = 100\nnum_q_heads = 4\nnum_kv_heads = 2\ndim_qk = 32\n"
                  "dtype = \"{}\"\n[mask]\nexpr = \"{}\"\n[score]\nsoftcap = {:.1f}\n",
                  dtype, mask, softcap));
}

int64_t CountNans(const TensorMap& tensors) {
  int64_t nans = 0;
  for (const auto& [name, tensor] : tensors) {
    for (int64_t i = 0; i < tensor.NumElements(); ++i) nans += std::isnan(tensor.At(i)) ? 1 : 0;
  }
  return nans;
}

// The runs of one case, each on the bridge or not at all.
class CaseRunner {
 public:
  CaseRunner(const Engine& engine, BridgeCase& out) : engine_(engine), out_(out) {}

  Result<TensorMap> Run(const Contract& contract, const Batch& batch, const TensorMap& inputs, bool backward = true) {
    RunOptions options;
    options.lane = kLane;
    options.backward = backward;
    options.digests = true;
    options.input_source = "seed 1";
    Result<Target> target = FindTarget("cpu");
    if (!target) return tl::unexpected(std::move(target.error()));
    RunOutcome outcome = tessera::Run(engine_, contract, batch, inputs, *target, options);
    out_.receipts.push_back(outcome.receipt);
    if (outcome.error) return tl::unexpected(std::move(*outcome.error));
    out_.nans += CountNans(outcome.outputs);
    return std::move(outcome.outputs);
  }

  // Runs, and holds the outputs against what the contract means, worked out without a plan or a lane.
  Result<TensorMap> RunChecked(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                               bool backward = true) {
    Result<TensorMap> outputs = Run(contract, batch, inputs, backward);
    if (!outputs) return outputs;
    Result<CheckReport> report = CheckOutputs(contract, batch, inputs, *outputs, {.arithmetic = Arithmetic::Single()});
    if (!report) return tl::unexpected(std::move(report.error()));
    if (!report->pass) return tl::unexpected(Error{ErrorCode::kCheckFailed, report->text, out_.name, {}});
    return outputs;
  }

 private:
  const Engine& engine_;
  BridgeCase& out_;
};

bool IsSame(const Tensor& a, const Tensor& b) { return a.bytes == b.bytes; }

// ---- the six cases: each gives what it saw, or why not

using Seen = Result<std::string>;

Error Bad(std::string what) { return {ErrorCode::kCheckFailed, std::move(what), "bridge", {}}; }

Seen EnableSplash(const Engine& engine, BridgeCase& out) {
  Result<SplashReport> splash = CompareSplash(engine);
  if (!splash) return tl::unexpected(std::move(splash.error()));
  out.nans += splash->has_nan ? 1 : 0;
  const std::string text = fmt::format(
      "JAX's Splash kernel, interpreted, differs from plain attention by at most {:.1e}", splash->difference);
  if (splash->difference > 1e-4) return tl::unexpected(Bad(text));
  return text;
}

Seen ForwardBf16(const Engine& engine, BridgeCase& out) {
  const Result<Contract> contract = MakeContract("causal", "bf16", 0);
  if (!contract) return tl::unexpected(contract.error());
  Result<TensorMap> outputs = CaseRunner(engine, out).RunChecked(*contract, {}, MakeInputs(*contract, 1, false), false);
  if (!outputs) return tl::unexpected(std::move(outputs.error()));
  return "o and lse are those of the contract";
}

Seen BackwardGradients(const Engine& engine, BridgeCase& out) {
  const Result<Contract> contract = MakeContract("causal", "f32", 0);
  if (!contract) return tl::unexpected(contract.error());
  Result<TensorMap> outputs = CaseRunner(engine, out).RunChecked(*contract, {}, MakeInputs(*contract, 1, true));
  if (!outputs) return tl::unexpected(std::move(outputs.error()));
  for (const char* name : {"dq", "dk", "dv"}) {
    const Tensor& gradient = outputs->at(name);
    double sum = 0;
    for (int64_t i = 0; i < gradient.NumElements(); ++i) sum += std::abs(gradient.At(i));
    if (!(sum > 0)) return tl::unexpected(Bad(fmt::format("no gradient reaches {}", name)));
  }
  return "dq, dk and dv are those of the contract, and none is zero";
}

// Documents of 40, 35 and 25 tokens. What another document holds must not change the first one's bits; without the
// term it must.
Seen DocumentMasking(const Engine& engine, BridgeCase& out) {
  const Result<Contract> contract = MakeContract("causal and documents", "f32", 0);
  const Result<Contract> apart = MakeContract("causal", "f32", 0);
  if (!contract || !apart) return tl::unexpected(contract ? apart.error() : contract.error());
  Batch batch;
  batch.doc_lengths = IntRows{{40, 35, 25}, {100}};
  CaseRunner runner(engine, out);
  TensorMap inputs = MakeInputs(*contract, 1, true);
  Result<TensorMap> first = runner.RunChecked(*contract, batch, inputs);
  Result<TensorMap> without = runner.RunChecked(*apart, {}, inputs);
  for (const char* name : {"k", "v"}) {  // the first 40 tokens of every head of row 0
    Tensor& tensor = inputs[name];
    for (int64_t head = 0; head < tensor.shape[1]; ++head) {
      for (int64_t i = 0; i < 40 * tensor.shape[3]; ++i) tensor.Set(head * tensor.shape[2] * tensor.shape[3] + i, 7.0);
    }
  }
  Result<TensorMap> changed = runner.RunChecked(*contract, batch, inputs);
  for (const Result<TensorMap>* run : {&first, &without, &changed}) {
    if (!*run) return tl::unexpected(run->error());
  }
  const Tensor& before = first->at("o");
  const Tensor& after = changed->at("o");
  bool is_kept = true;
  for (int64_t head = 0; head < before.shape[1]; ++head) {
    for (int64_t i = 40 * before.shape[3]; i < before.shape[2] * before.shape[3]; ++i) {
      const int64_t at = head * before.shape[2] * before.shape[3] + i;
      is_kept = is_kept && before.At(at) == after.At(at);
    }
  }
  if (!is_kept) return tl::unexpected(Bad("another document's values reached a document"));
  if (IsSame(before, without->at("o"))) return tl::unexpected(Bad("documents made no difference"));
  return "another document's values change no bit of a document, and without the term they would";
}

Seen SoftcapReconfiguration(const Engine& engine, BridgeCase& out) {
  CaseRunner runner(engine, out);
  std::vector<Tensor> results;
  for (const double softcap : {30.0, 0.5, 0.0, 30.0}) {
    const Result<Contract> contract = MakeContract("causal", "f32", softcap);
    if (!contract) return tl::unexpected(contract.error());
    Result<TensorMap> outputs = runner.RunChecked(*contract, {}, MakeInputs(*contract, 1, true));
    if (!outputs) return tl::unexpected(std::move(outputs.error()));
    results.push_back(outputs->at("o"));
  }
  if (IsSame(results[0], results[1]) || IsSame(results[1], results[2]) || IsSame(results[0], results[2])) {
    return tl::unexpected(Bad("a changed softcap had no effect"));
  }
  if (!IsSame(results[0], results[3])) return tl::unexpected(Bad("an earlier softcap was left over"));
  return "softcap 30, 0.5, none and 30 again: each takes effect, and the first comes back to the bit";
}

Seen GptModel(const Engine& engine, BridgeCase& out) {
  std::vector<double> losses[2];
  CaseRunner runner(engine, out);
  const AttentionCall on_bridge = [&](const Contract& contract, const TensorMap& inputs) {
    return runner.Run(contract, {}, inputs);
  };
  const AttentionCall on_reference = [&](const Contract& contract, const TensorMap& inputs) -> Result<TensorMap> {
    RunOptions options;
    options.lane = "reference";
    options.backward = true;
    RunOutcome outcome = tessera::Run(engine, contract, {}, inputs, FindTarget("cpu").value(), options);
    if (outcome.error) return tl::unexpected(std::move(*outcome.error));
    return std::move(outcome.outputs);
  };
  for (const bool is_bridge : {true, false}) {
    Result<std::vector<double>> trained = TrainSmallGpt(is_bridge ? on_bridge : on_reference, 3);
    if (!trained) return tl::unexpected(std::move(trained.error()));
    losses[is_bridge ? 0 : 1] = std::move(*trained);
  }
  for (size_t i = 0; i < losses[0].size(); ++i) {
    const bool falls = i == 0 || losses[0][i] < losses[0][i - 1];
    const bool is_close = std::abs(losses[0][i] - losses[1][i]) <= 1e-5 * std::abs(losses[1][i]);
    if (!falls || !is_close) {
      return tl::unexpected(Bad(fmt::format("losses {:.6f}, and {:.6f} on the reference lane",
                                            fmt::join(losses[0], ", "), fmt::join(losses[1], ", "))));
    }
  }
  return fmt::format("two layers trained through the bridge: loss {:.6f}, as on the reference lane",
                     fmt::join(losses[0], ", "));
}

}  // namespace

bool BridgeHealth::IsHealthy() const {
  return std::all_of(cases.begin(), cases.end(), [](const BridgeCase& c) { return c.pass && c.nans == 0; });
}

Result<BridgeHealth> CheckBridge(const Engine& engine) {
  constexpr std::pair<const char*, Seen (*)(const Engine&, BridgeCase&)> kCases[] = {
      {"enable_splash_attention", EnableSplash},           {"forward_bf16_attention", ForwardBf16},
      {"backward_gradient_flow", BackwardGradients},       {"doc_ids_masking", DocumentMasking},
      {"softcap_reconfiguration", SoftcapReconfiguration}, {"gpt_model_integration", GptModel}};
  BridgeHealth health;
  for (const auto& [name, check] : kCases) {
    BridgeCase one;
    one.name = name;
    const Seen seen = check(engine, one);
    if (!seen && seen.error().code == ErrorCode::kLaneRefused) return tl::unexpected(seen.error());
    one.pass = seen.has_value();
    one.note = seen ? *seen : ToText(seen.error());
    for (const Receipt& receipt : one.receipts) {
      const CrossingUse& use = receipt.crossing;
      if (receipt.executed != kLane) one.pass = false;  // proven on the same path, or not at all
      if (!use.runtime.empty()) {
        health.use.runtime = use.runtime;
        health.use.interpreter = use.interpreter;
        health.use.library = use.library;
      }
      health.use.calls += use.calls;
      health.use.bytes_in += use.bytes_in;
      health.use.copied_in += use.copied_in;
      health.use.copies_in += use.copies_in;
      health.use.bytes_out += use.bytes_out;
      health.use.copies_out += use.copies_out;
    }
    health.cases.push_back(std::move(one));
  }
  return health;
}

std::string ToJson(const BridgeHealth& health) {
  std::vector<std::string> cases;
  for (const BridgeCase& one : health.cases) {
    std::vector<std::string> receipts;
    for (const Receipt& receipt : one.receipts) receipts.push_back(ToJson(receipt));
    JsonObject object;
    object.Text("case", one.name).Bool("pass", one.pass).Int("nans", one.nans).Text("note", one.note);
    cases.push_back(object.Raw("receipts", JsonList(receipts)).Done());
  }
  const CrossingUse& use = health.use;
  JsonObject crossing;
  crossing.Int("calls", use.calls).Int("bytes_in", use.bytes_in).Int("copied_in", use.copied_in);
  crossing.Int("copies_in", use.copies_in).Int("bytes_out", use.bytes_out).Int("copies_out", use.copies_out);
  JsonObject object;
  object.Bool("healthy", health.IsHealthy()).Text("lane", kLane).Text("owner", kOwnerJax).Text("runtime", use.runtime);
  object.Text("interpreter", use.interpreter).Text("library", use.library).Raw("crossing", crossing.Done());
  return object.Raw("cases", JsonList(cases)).Done();
}

}  // namespace tessera::program
