// Runs many fresh batches under each of a few contracts and counts what was built: the table that shows whether
// anything a batch says reaches a key.
#include "stability.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

constexpr const char* kMasks[] = {"causal and documents", "causal and window(15, 0) and documents and valid",
                                  "causal and documents or sink(4, document)", "full and valid",
                                  "causal and documents and valid and blocks"};

struct Row {
  std::string name;
  CacheStats stats;
  std::set<std::string> plans;
  std::set<std::string> outputs;
  std::set<std::string> classes;
  int64_t kept_ns = 0;   // prepare and plan, with a cache
  int64_t fresh_ns = 0;  // and without
};

// Small, so that ten thousand batches take seconds.
Result<Contract> SmallContract(const std::string& mask) {
  return ParseContract(
      fmt::format("version = 1\n[shape]\nbatch = 2\nq_len = 64\nnum_q_heads = 2\nnum_kv_heads = 1\n"
                  "dim_qk = 8\n[mask]\nexpr = \"{}\"\n[tiles]\nq = 16\nkv = 16\nreason = \"small\"\n",
                  mask));
}

IdRows RandomIds(std::mt19937_64& rng, int64_t rows, int64_t len) {
  IdRows ids{rows, len, {}};
  for (int64_t row = 0; row < rows; ++row) {
    int32_t doc = 0;
    int64_t left = 0;
    for (int64_t i = 0; i < len; ++i, --left) {
      if (left == 0) {
        ++doc;
        left = 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(len));
      }
      ids.values.push_back(doc);
    }
  }
  return ids;
}

std::vector<int64_t> RandomCounts(std::mt19937_64& rng, int64_t rows, int64_t len) {
  std::vector<int64_t> counts;
  for (int64_t row = 0; row < rows; ++row) {
    counts.push_back(static_cast<int64_t>(rng() % static_cast<uint64_t>(len + 1)));
  }
  return counts;
}

// Each query picks each block or not, by chance.
Picks RandomPicks(std::mt19937_64& rng, const Shape& shape) {
  constexpr int64_t kBlocks = 4;
  Picks picks;
  picks.block_tokens = (shape.kv_len + kBlocks - 1) / kBlocks;
  const int64_t num_blocks = (shape.kv_len + picks.block_tokens - 1) / picks.block_tokens;
  picks.shape = {shape.batch, shape.q_len, shape.num_kv_heads, num_blocks};
  for (int64_t row = 0; row < shape.batch * shape.q_len * shape.num_kv_heads; ++row) {
    for (int32_t block = 0; block < num_blocks; ++block) picks.blocks.push_back(rng() % 2 == 0 ? block : -1);
  }
  return picks;
}

Batch RandomBatch(std::mt19937_64& rng, const Contract& contract, const MaskFacts& facts) {
  const Shape& shape = contract.shape;
  Batch batch;
  const bool is_square = shape.q_len == shape.kv_len;
  if (facts.needs_documents && is_square) batch.doc_ids = RandomIds(rng, shape.batch, shape.q_len);
  if (facts.needs_documents && !is_square) {
    batch.q_doc_ids = RandomIds(rng, shape.batch, shape.q_len);
    batch.kv_doc_ids = RandomIds(rng, shape.batch, shape.kv_len);
  }
  if (facts.needs_valid && is_square) batch.valid_tokens = RandomCounts(rng, shape.batch, shape.q_len);
  if (facts.needs_valid && !is_square) {
    batch.q_valid_tokens = RandomCounts(rng, shape.batch, shape.q_len);
    batch.kv_valid_tokens = RandomCounts(rng, shape.batch, shape.kv_len);
  }
  if (facts.needs_blocks && !contract.routing) batch.picks = RandomPicks(rng, contract.shape);
  return batch;
}

int64_t PlanNs(const Receipt& receipt) {
  int64_t ns = 0;
  for (const Timing& timing : receipt.timings) {
    if (timing.name == "prepare" || timing.name == "plan") ns += timing.ns;
  }
  return ns;
}

Result<Row> Measure(const Contract& contract, const Target& target, const StabilityOptions& options) {
  Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(facts.error());
  Row row;
  row.name = ToText(contract.mask.heads[0]) + (contract.mask.heads.size() > 1 ? ", ..." : "");
  std::mt19937_64 rng(options.seed);
  const TensorMap inputs = MakeInputs(contract, options.seed, false);
  EngineOptions keeps = TheEngine().options();
  keeps.max_prepared = 4;
  const Engine kept(keeps);
  EngineOptions forgets = keeps;
  forgets.max_prepared = 0;
  const Engine fresh(forgets);
  RunOptions run;
  run.threads = 1;
  run.digests = true;
  for (int64_t i = 0; i < options.batches; ++i) {
    const Batch batch = RandomBatch(rng, contract, *facts);
    const RunOutcome with = Run(kept, contract, batch, inputs, target, run);
    const RunOutcome without = Run(fresh, contract, batch, inputs, target, run);
    for (const RunOutcome* outcome : {&with, &without}) {
      if (outcome->error) return tl::unexpected(*outcome->error);
    }
    if (with.receipt.output_digest != without.receipt.output_digest) {
      return Fail(ErrorCode::kCheckFailed, fmt::format("batch {} gives another result when it is found prepared", i),
                  row.name);
    }
    row.plans.insert(with.receipt.plan_fingerprint);
    row.outputs.insert(with.receipt.output_digest);
    row.classes.insert(with.receipt.class_key);
    row.kept_ns += PlanNs(with.receipt);
    row.fresh_ns += PlanNs(without.receipt);
  }
  row.stats = kept.cache_stats();
  return row;
}

std::string Microseconds(int64_t ns, int64_t count) {
  return fmt::format("{:.1f}", static_cast<double>(ns) / 1e3 / static_cast<double>(std::max<int64_t>(count, 1)));
}

std::string ToLine(const Row& row, int64_t batches) {
  return fmt::format("{:<50} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}", row.name, Grouped(batches),
                     Grouped(row.stats.builds), Grouped(row.stats.hits),
                     Grouped(static_cast<int64_t>(row.plans.size())), Grouped(static_cast<int64_t>(row.outputs.size())),
                     Grouped(static_cast<int64_t>(row.classes.size())), Microseconds(row.kept_ns, batches),
                     Microseconds(row.fresh_ns, batches));
}

std::string ToDocument(const Row& row, int64_t batches) {
  JsonObject object;
  object.Text("contract", row.name).Int("batches", batches).Int("builds", row.stats.builds).Int("hits", row.stats.hits);
  object.Int("misses", row.stats.misses).Int("evictions", row.stats.evictions);
  object.Int("distinct_plans", static_cast<int64_t>(row.plans.size()));
  object.Int("distinct_outputs", static_cast<int64_t>(row.outputs.size()));
  object.Int("classes", static_cast<int64_t>(row.classes.size()));
  return object.Int("plan_ns", row.kept_ns).Int("plan_ns_without_cache", row.fresh_ns).Done();
}

}  // namespace

int BenchStability(const StabilityOptions& options) {
  std::vector<Contract> contracts;
  if (options.contract.empty()) {
    for (const char* mask : kMasks) {
      auto contract = SmallContract(mask);
      if (!contract) return Report(contract.error(), options.json);
      contracts.push_back(std::move(*contract));
    }
  } else {
    auto contract = ReadContractArgument(options.contract);
    if (!contract) return Report(contract.error(), options.json);
    if (auto fits = CheckTensorMemory(*contract, false); !fits) return Report(fits.error(), options.json);
    contracts.push_back(std::move(*contract));
  }
  auto target = FindTarget("cpu");
  if (!target) return Report(target.error(), options.json);
  const Progress progress("running", options.progress);
  Say(options.json, fmt::format("{:<50} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}", "contract", "batches",
                                "builds", "hits", "plans", "outputs", "classes", "plan us", "uncached"));
  std::vector<std::string> documents;
  bool is_stable = true;
  for (const Contract& contract : contracts) {
    auto row = Measure(contract, *target, options);
    if (!row) return Report(row.error(), options.json);
    Say(options.json, ToLine(*row, options.batches));
    documents.push_back(ToDocument(*row, options.batches));
    is_stable = is_stable && row->stats.builds == 1;
  }
  if (options.json) {
    JsonObject object;
    object.Int("seed", static_cast<int64_t>(options.seed)).Bool("pass", is_stable);
    Print(object.Raw("contracts", JsonList(documents)).Done() + "\n");
  }
  return is_stable ? kGood : kCheckFailed;
}

}  // namespace tessera::program
