// The cache of prepared runs: one build for any number of batches, bounded, shared by threads, and never a difference
// in a result.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/limits.h"
#include "engine/fixtures.h"
#include "support/proves.h"
#include "support/random_batch.h"

namespace tessera {
namespace {

// An engine of a test's own, for its cache.
struct RunCache {
  explicit RunCache(size_t capacity, std::optional<int64_t> max_bytes = {})
      : engine([&] {
          EngineOptions options;
          options.max_prepared = capacity;
          options.max_prepared_bytes = max_bytes;
          return options;
        }()) {}

  struct Got {
    std::shared_ptr<const Prepared> prepared;
    bool is_hit = false;
    bool is_same_spelling = false;
  };
  Result<Got> Get(const Contract& contract, const Target& target) const {
    return engine.Prepare(contract, target).map([](const Attention& attention) {
      const AttentionState& state = *EngineAccess::Of(attention);
      return Got{state.prepared, state.cache.outcome == "hit", state.is_same_spelling};
    });
  }
  RunOutcome Run(const Contract& contract, const Batch& batch, const TensorMap& inputs, const Target& target,
                 const RunOptions& options = {}) const {
    return tessera::Run(engine, contract, batch, inputs, target, WithDigests(options));
  }
  void Clear() const { engine.ClearCache(); }
  CacheStats stats() const { return engine.cache_stats(); }

  Engine engine;
};
// One that keeps nothing.
const RunCache& NoCache() {
  static const RunCache cache(0);
  return cache;
}

Batch RandomBatchOf(const Contract& contract, std::mt19937_64& rng) {
  Batch batch;
  batch.doc_ids = IdRows{contract.shape.batch, contract.shape.q_len, {}};
  batch.valid_tokens.emplace();
  for (int64_t row = 0; row < contract.shape.batch; ++row) {
    const std::vector<int32_t> ids = RandomDocIds(rng, contract.shape.q_len, false);
    batch.doc_ids->values.insert(batch.doc_ids->values.end(), ids.begin(), ids.end());
    batch.valid_tokens->push_back(RandomInt(rng, 0, contract.shape.q_len));
  }
  return batch;
}

TEST(RunCache, ThousandBatches_OneBuild) {
  Proves("R31 R91 B9");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const Contract contract =
      SmallContract({.mask = "causal and documents and valid and blocks", .len = 32, .num_q_heads = 1});
  const TensorMap inputs = MakeInputs(contract, seed, false);
  const Target target = TargetNamed("cpu");
  RunCache cache(4);
  const RunOptions options = Ask{.threads = 1};
  std::map<std::string, std::string> output_of_mask;
  std::set<std::string> classes;
  for (int i = 0; i < 1000; ++i) {
    Batch batch = RandomBatchOf(contract, rng);
    batch.picks = RandomPicks(rng, contract);
    // A contract built anew for every step, as a training loop would.
    const Contract again =
        SmallContract({.mask = "causal and documents and valid and blocks", .len = 32, .num_q_heads = 1});
    const RunOutcome outcome = cache.Run(again, batch, inputs, target, options);
    ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
    EXPECT_EQ(outcome.receipt.cache.outcome, i == 0 ? "miss" : "hit");
    EXPECT_EQ(outcome.receipt.cache.builds, 1);
    EXPECT_EQ(outcome.receipt.cache.hits, i);
    classes.insert(outcome.receipt.class_key);
    const RunOutcome fresh = NoCache().Run(contract, batch, inputs, target, options);
    EXPECT_EQ(fresh.receipt.cache.outcome, "off");
    EXPECT_EQ(fresh.outputs.at("o").bytes, outcome.outputs.at("o").bytes) << "batch " << i;
    EXPECT_EQ(fresh.receipt.plan_fingerprint, outcome.receipt.plan_fingerprint);
    // Equal documents give equal results, and other documents other ones.
    const std::string& output = outcome.receipt.output_digest;
    EXPECT_EQ(output_of_mask.emplace(outcome.receipt.mask_digest, output).first->second, output);
  }
  EXPECT_EQ(cache.stats().builds, 1);
  EXPECT_EQ(cache.stats().hits, 999);
  EXPECT_EQ(cache.stats().misses, 1);
  EXPECT_EQ(classes.size(), 1u);
  EXPECT_GT(output_of_mask.size(), 100u);
  std::set<std::string> outputs;
  for (const auto& [mask, output] : output_of_mask) outputs.insert(output);
  EXPECT_GT(outputs.size(), output_of_mask.size() / 2);
}

TEST(RunCache, EqualContractsOfOtherSpelling_HitAndKeepTheirText) {
  Proves("B9 R34");
  const std::vector<std::string> texts = {
      "version = 1\n[shape]\nq_len = 32\ndim_qk = 8\n[mask]\nexpr = \"causal and window(9, 0) and documents\"\n",
      R"json({"version": 1, "shape": {"q_len": 32, "kv_len": 32, "dim_qk": 8, "dim_v": 8, "num_q_heads": 1},
          "mask": {"expr": "documents and (window(9, 3) and causal)"}})json",
      "version = 1\n[shape]\nq_len = 32\ndim_qk = 8\n[mask]\nexpr = \"window(9, 0) and documents\"\n[tiles]\nq = "
      "256\n"};
  RunCache cache(4);
  const Target target = TargetNamed("cpu");
  std::set<std::string> outputs;
  int64_t run = 0;
  for (int round = 0; round < 2; ++round) {
    for (const std::string& text : texts) {
      const Result<Contract> contract = ParseContract(text);
      ASSERT_TRUE(contract.has_value()) << ToText(contract.error());
      const TensorMap inputs = MakeInputs(*contract, 3, false);
      const RunOutcome outcome = cache.Run(*contract, DocumentBatch(*contract, {10, 7}), inputs, target);
      ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
      EXPECT_EQ(outcome.receipt.cache.outcome, run++ == 0 ? "miss" : "hit");
      EXPECT_EQ(outcome.receipt.contract_text, ToToml(*contract));
      outputs.insert(outcome.receipt.output_digest);
      ExpectSound(outcome.receipt);
    }
  }
  EXPECT_EQ(outputs.size(), 1u);
  const CacheStats stats = cache.stats();
  EXPECT_EQ(stats.builds, 1);
  EXPECT_EQ(stats.entries, 1);
  EXPECT_EQ(stats.respelled, 2);  // each other spelling once; after that it is known
  EXPECT_EQ(stats.hits, 5);
}

TEST(RunCache, MoreContractsThanCapacity_StaysBoundedAndChangesNothing) {
  Proves("R34 B8");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  RunCache cache(3);
  const Target target = TargetNamed("cpu");
  std::map<int64_t, std::string> outputs;
  for (int i = 0; i < 200; ++i) {
    const int64_t window = RandomInt(rng, 0, 9);
    const Contract contract = SmallContract({.mask = fmt::format("window({}, 0)", window), .len = 32});
    const RunOutcome outcome = cache.Run(contract, {}, MakeInputs(contract, 1, false), target);
    ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
    const std::string& output = outcome.receipt.output_digest;
    EXPECT_EQ(outputs.emplace(window, output).first->second, output) << "window " << window;
    ExpectSound(outcome.receipt);
    const CacheStats stats = cache.stats();
    EXPECT_LE(stats.entries, 3);
    EXPECT_EQ(stats.entries, stats.builds - stats.evictions);
    EXPECT_EQ(stats.hits + stats.misses, i + 1);
  }
  EXPECT_GT(cache.stats().evictions, 10);
  EXPECT_EQ(outputs.size(), 10u);
  cache.Clear();
  EXPECT_EQ(cache.stats().entries, 0);
  EXPECT_EQ(cache.stats().bytes, 0);
}

// Tiny lengths, where many masks written differently are one: whatever a run finds prepared, by whichever spelling, and
// whatever was given up in between, its receipt and its bits are those of a run that prepared everything itself.
TEST(RunCache, RandomContracts_RunAsIfNothingWereKept) {
  Proves("R34 B9");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  RunCache cache(16);
  const Target target = TargetNamed("cpu");
  for (int i = 0; i < 1500; ++i) {
    const MaskSample sample = RandomMaskSample(rng, 3);
    const TensorMap inputs = MakeInputs(sample.contract, 1, false);
    const RunOutcome kept = cache.Run(sample.contract, sample.batch, inputs, target);
    const RunOutcome fresh = NoCache().Run(sample.contract, sample.batch, inputs, target);
    ASSERT_EQ(ErrorText(kept), ErrorText(fresh));
    for (const ReceiptChange& change : DiffReceipts(fresh.receipt, kept.receipt)) {
      const bool is_history =
          change.group == "timings" || change.field.rfind("cache.", 0) == 0 || change.field.rfind("work.", 0) == 0;
      EXPECT_TRUE(is_history) << change.field << ": " << change.before << " became " << change.after << " under\n"
                              << fresh.receipt.contract_text;
    }
    EXPECT_EQ(kept.receipt.cache.key, fresh.receipt.cache.key);
  }
  EXPECT_GT(cache.stats().respelled, 0);
  EXPECT_GT(cache.stats().evictions, 10);
}

// `full or documents` means `full`, but lets a batch bring documents.
TEST(RunCache, EqualMeaning_DoesNotLendWhatABatchMayBring) {
  Proves("R32 B32");
  const Contract naming = SmallContract({.mask = "full or documents"});
  const Contract plain = SmallContract({.mask = "full"});
  const Batch ids = DocumentBatch(plain, {20});
  const TensorMap inputs = MakeInputs(plain, 1, false);
  RunCache cache(4);
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE(cache.Run(naming, ids, inputs, TargetNamed("cpu")).error.has_value());
    EXPECT_TRUE(cache.Run(plain, ids, inputs, TargetNamed("cpu")).error.has_value());
  }
}

TEST(RunCache, LeastRecentlyUsed_GoesFirst) {
  Proves("R34");
  RunCache cache(2);
  const Target target = TargetNamed("cpu");
  const auto is_hit = [&](const char* mask) {
    Result<RunCache::Got> got = cache.Get(SmallContract({.mask = mask}), target);
    EXPECT_TRUE(got.has_value());
    return got && got->is_hit;
  };
  EXPECT_FALSE(is_hit("causal"));
  EXPECT_FALSE(is_hit("full"));
  EXPECT_TRUE(is_hit("causal"));
  EXPECT_FALSE(is_hit("chunk(16)"));  // in the place of `full`
  EXPECT_TRUE(is_hit("causal"));
  EXPECT_FALSE(is_hit("full"));
  RunCache nothing(0);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(nothing.Get(SmallContract(), target)->is_hit);
  EXPECT_EQ(nothing.stats().entries, 0);
}

TEST(RunCache, ManySpellings_AreForgottenNotKeptForever) {
  Proves("B8");
  RunCache cache(4);
  const Target target = TargetNamed("cpu");
  Contract contract = SmallContract();
  const auto get = [&](int number) {
    contract.tiles_reason = fmt::format("reason {}", number);
    return cache.Get(contract, target)->is_hit;
  };
  EXPECT_FALSE(get(0));
  const int many = static_cast<int>(kMaxSpellings) + 5;
  for (int i = 1; i < many; ++i) EXPECT_TRUE(get(i));
  const int64_t before = cache.stats().respelled;
  EXPECT_TRUE(get(many - 1));
  EXPECT_EQ(cache.stats().respelled, before);  // known
  EXPECT_TRUE(get(0));
  EXPECT_EQ(cache.stats().respelled, before + 1);  // forgotten, and found by meaning
  EXPECT_EQ(cache.stats().builds, 1);
}

// A bitmap is its cells, whatever its digest says.
TEST(RunCache, BitmapWithAWrongDigest_IsItsCells) {
  Contract contract = SmallContract({.len = 8});
  const auto bitmap = [&](uint8_t corner) {
    auto made = std::make_shared<Bitmap>();
    made->q_len = made->kv_len = 8;
    made->cells.assign(64, 1);
    made->cells[7] = corner;
    made->digest = std::string(32, '0');
    return made;
  };
  MaskTerm term;
  term.kind = TermKind::kBitmap;
  term.path = "m.npy";
  RunCache cache(4);
  std::set<std::string> keys;
  for (const uint8_t corner : {uint8_t{0}, uint8_t{1}}) {
    term.bitmap = bitmap(corner);
    contract.mask.heads[0].term = term;
    Result<RunCache::Got> got = cache.Get(contract, TargetNamed("cpu"));
    ASSERT_TRUE(got.has_value()) << ToText(got.error());
    EXPECT_FALSE(got->is_hit);
    keys.insert(got->prepared->key.contract_key);
  }
  EXPECT_EQ(keys.size(), 2u);
}

TEST(RunCache, RefusedContract_IsNotKeptAndBuildsNothing) {
  RunCache cache(4);
  Contract contract = SmallContract();
  contract.shape.dim_qk = 0;
  for (int i = 1; i <= 2; ++i) {
    const RunOutcome outcome = cache.Run(contract, {}, {}, TargetNamed("cpu"));
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code, ErrorCode::kContractInvalid);
    EXPECT_EQ(outcome.receipt.failed_at, "contract");
    EXPECT_EQ(outcome.receipt.cache, CacheUse{});
    EXPECT_EQ(cache.stats().misses, i);
    EXPECT_EQ(cache.stats().builds, 0);
  }
}

// The key announces what a batch must bring; a hit is as strict about it as a miss.
TEST(RunCache, RunTimeTensors_AreNeitherDroppedNorMadeUp) {
  Proves("R32 B32");
  const Contract documents = SmallContract({.mask = "causal and documents"});
  const Contract valid = SmallContract({.mask = "causal and valid"});
  const Contract plain = SmallContract();
  Batch counts;
  counts.valid_tokens = std::vector<int64_t>{20};
  const Batch ids = DocumentBatch(documents, {20});
  RunCache cache(8);
  const Target target = TargetNamed("cpu");
  for (int round = 0; round < 2; ++round) {
    const struct {
      const Contract& contract;
      const Batch& batch;
      bool good;
    } cases[] = {{documents, ids, true}, {documents, {}, false}, {documents, counts, false},
                 {valid, counts, true},  {valid, {}, false},     {valid, ids, false},
                 {plain, {}, true},      {plain, ids, false},    {plain, counts, false}};
    int number = 0;
    for (const auto& c : cases) {
      SCOPED_TRACE(fmt::format("round {}, case {}", round, number++));
      const RunOutcome outcome = cache.Run(c.contract, c.batch, MakeInputs(c.contract, 1, false), target);
      EXPECT_EQ(outcome.error.has_value(), !c.good) << ErrorText(outcome);
      if (outcome.error) {
        EXPECT_EQ(outcome.error->code, ErrorCode::kBatchInvalid);
        EXPECT_EQ(outcome.receipt.failed_at, "batch");
        EXPECT_TRUE(outcome.outputs.empty());
      }
      ExpectSound(outcome.receipt);
    }
  }
  EXPECT_EQ(cache.stats().builds, 3);
  EXPECT_EQ(cache.stats().hits, 15);
}

TEST(RunCache, Threads_ShareOneBuildPerKey) {
  Proves("R34");
  const uint64_t seed = PrintedSeed();
  const Target target = TargetNamed("cpu");
  constexpr int kThreads = 8;
  constexpr int kContracts = 5;
  std::vector<Contract> contracts;
  std::vector<TensorMap> inputs;
  std::vector<std::string> expected;
  for (int c = 0; c < kContracts; ++c) {
    contracts.push_back(SmallContract({.mask = fmt::format("causal and window({}, 0) and documents", c), .len = 24}));
    inputs.push_back(MakeInputs(contracts.back(), seed, false));
    expected.push_back(
        NoCache()
            .Run(contracts.back(), DocumentBatch(contracts.back(), {11}), inputs.back(), target, Ask{.threads = 1})
            .receipt.output_digest);
  }
  for (const size_t capacity : {size_t{kContracts}, size_t{2}, size_t{0}}) {
    SCOPED_TRACE(fmt::format("capacity {}", capacity));
    RunCache cache(capacity);
    constexpr int kRuns = 30;
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 rng(seed + static_cast<uint64_t>(t));
        for (int i = 0; i < kRuns; ++i) {
          // All begin with the same one, so that they meet at its build.
          const size_t c = i == 0 ? 0 : static_cast<size_t>(RandomInt(rng, 0, kContracts - 1));
          // Half of the threads write it in another way, which is another place to meet.
          Contract contract = contracts[c];
          if (t % 2 == 1) contract.tiles_reason = "written elsewhere";
          const RunOutcome outcome =
              cache.Run(contract, DocumentBatch(contract, {11}), inputs[c], target, Ask{.threads = 1});
          if (outcome.error || outcome.receipt.output_digest != expected[c]) ++wrong;
          if (outcome.receipt.contract_text != ToToml(contract)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    const CacheStats stats = cache.stats();
    EXPECT_EQ(stats.hits + stats.misses, kThreads * kRuns);
    EXPECT_EQ(stats.misses, stats.builds);
    EXPECT_LE(stats.entries, static_cast<int64_t>(capacity));
    if (capacity == kContracts) {
      EXPECT_EQ(stats.builds, kContracts);
      EXPECT_EQ(stats.evictions, 0);
    }
  }
}

// Bytes bound it too, and what alone is over the bound is used and not kept.
TEST(RunCache, Bytes_BoundItToo) {
  Proves("B8");
  const Target target = TargetNamed("cpu");
  RunCache roomy(100);
  const int64_t one = roomy.Get(SmallContract({.mask = "window(0, 0)"}), target)->prepared->bytes;
  RunCache cache(100, one * 5 / 2);
  for (int window = 0; window < 8; ++window) {
    const Contract contract = SmallContract({.mask = fmt::format("window({}, 0)", window)});
    ASSERT_TRUE(cache.Get(contract, target).has_value());
    EXPECT_LE(cache.stats().bytes, one * 5 / 2);
  }
  EXPECT_EQ(cache.stats().entries, 2);
  RunCache tiny(100, one / 2);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(tiny.Get(SmallContract(), target)->is_hit);
  EXPECT_EQ(tiny.stats().entries, 0);
}

TEST(RunCacheDefault, IsUsedWithoutBeingAsked) {
  const Contract contract = SmallContract({.mask = "causal and window(11, 0)"});
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const Target target = TargetNamed("cpu");
  EXPECT_EQ(EngineOptions().max_prepared, kMaxCachedRuns);
  const Engine engine;
  tessera::Run(engine, contract, {}, inputs, target);
  const RunOutcome outcome = tessera::Run(engine, contract, {}, inputs, target);
  EXPECT_EQ(outcome.receipt.cache.outcome, "hit");
  EXPECT_EQ(engine.cache_stats().hits, outcome.receipt.cache.hits);
  EXPECT_EQ(engine.cache_stats().entries, 1);
  engine.ClearCache();
  EXPECT_EQ(engine.cache_stats().entries, 0);
}

}  // namespace
}  // namespace tessera
