// What the tests of the XLA lane share: a folder of their own for compiled programs, with the installed plugins in it,
// and small contracts.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "lanes/xla/pjrt/find_plugins.h"
#include "support/engine.h"
#include "support/proves.h"
#include "support/random_batch.h"
#include "support/run_program.h"
#include "tessera/tessera.h"

namespace tessera {

// Every test gets an empty store of programs; nothing of the user's is read or written but the plugins.
class XlaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("TESSERA_XLA")) before_ = before;
    const std::string installed = OptionsFromEnvironment().xla_folder;
    for (const pjrt::FoundPlugin& found : pjrt::FindPlugins(installed)) {
      if (found.name.rfind("xla-cpu-pjrt", 0) == 0) plugin_ = found.path;
    }
    if (plugin_.empty()) GTEST_SKIP() << "no CPU plugin in " << installed << "; script/setup --xla installs it";
    std::filesystem::create_symlink(installed + "/plugins", folder_.path() + "/plugins");
    setenv("TESSERA_XLA", folder_.path().c_str(), 1);  // for programs that tests start
    NewEngine();
  }
  void TearDown() override {
    if (before_) {
      setenv("TESSERA_XLA", before_->c_str(), 1);
    } else {
      unsetenv("TESSERA_XLA");
    }
  }

  // As a new process would have one, with the programs that are on disk.
  void NewEngine() {
    EngineOptions options = OptionsFromEnvironment();
    options.xla_folder = folder_.path();
    engine_.emplace(std::move(options));
  }
  const Engine& engine() const { return *engine_; }

  RunOutcome Run(const Contract& contract, const Batch& batch, const TensorMap& inputs, const Target& target,
                 const RunOptions& options = {}) const {
    return tessera::Run(*engine_, contract, batch, inputs, target, WithDigests(options));
  }

  static Contract MakeContract(const std::string& mask, int64_t len, int64_t dim = 16, DType dtype = DType::kF32) {
    Contract contract;
    contract.shape = {.batch = 1,
                      .q_len = len,
                      .kv_len = len,
                      .num_q_heads = 2,
                      .num_kv_heads = 1,
                      .dim_qk = dim,
                      .dim_v = dim,
                      .dtype = dtype};
    contract.mask.heads = {ParseMaskExpr(mask).value()};
    contract.score.scale = 0.25;
    contract.tiles = {16, 16};
    contract.tiles_reason = "short lengths";
    return contract;
  }

  static Batch RandomDocuments(std::mt19937_64& rng, const Contract& contract) {
    Batch batch;
    batch.doc_ids = IdRows{1, contract.shape.q_len, RandomDocIds(rng, contract.shape.q_len, false)};
    return batch;
  }

  static RunOptions Options(const std::string& lane = "xla_chunked") {
    RunOptions options;
    options.lane = lane;
    options.backward = true;
    if (lane == "xla_chunked") options.xla.optimization = 0;
    return options;
  }

  static Target Cpu() { return FindTarget("cpu").value(); }
  std::string StoreFolder() const { return folder_.path() + "/programs"; }

  TemporaryFolder folder_;
  std::string plugin_;

 private:
  std::optional<Engine> engine_;
  std::optional<std::string> before_;
};

// Both lanes round every product and sum in f32, one of them in another order.
inline void ExpectClose(const TensorMap& got, const TensorMap& want, double tolerance = 2e-5) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_FALSE(want.empty());
  for (const auto& [name, tensor] : want) {
    const Tensor& other = got.at(name);
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      const double a = other.At(i);
      const double b = tensor.At(i);
      if (a == b) continue;  // infinities too
      ASSERT_NEAR(a, b, tolerance * (1.0 + std::abs(b))) << name << "[" << i << "]";
    }
  }
}

}  // namespace tessera
