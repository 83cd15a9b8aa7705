// Pooling and neighbours as a compiled program, beside the functions that define them.
#include "model/chunk_program.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "engine/state.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/state.h"
#include "model/device.h"
#include "model/model_fixture.h"

namespace tessera {
namespace {

using Models = ModelTest;

template <class T>
std::vector<T> Fetched(const model::DeviceArrays& arrays, const char* name) {
  const std::vector<std::byte> bytes = arrays.Get(name).value();
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_F(Models, ChunksInAProgram_AreThePlainDefinition) {
  Proves("R75 R71");
  const model::ChunkShape shape{.rows = 3, .row_tokens = 70, .dim = 5, .num_chunks = 23, .most = 4};
  const Result<stablehlo::Program> program = model::LowerChunks(shape);
  ASSERT_TRUE(program) << ToText(program.error());
  for (const char* op : {"sort", "top_k", "gather", "scatter", "dynamic", "while", "custom_call"}) {
    EXPECT_EQ(program->text.find(op), std::string::npos) << op;
  }
  const XlaOptions options{.optimization = 0};
  const std::shared_ptr<EngineState>& state = EngineAccess::Of(engine());
  lanes::xla::Session session;
  const Decision open = state->xla->clients.Open(options, TargetKind::kCpu, &session);
  ASSERT_TRUE(open.accepted) << open.detail;
  const Result<lanes::xla::FoundProgram> made = state->xla->programs.Make(session, {*program, "chunks", options});
  ASSERT_TRUE(made) << ToText(made.error());

  std::mt19937_64 rng(PrintedSeed());
  model::DeviceArrays arrays(state, session);
  const auto tokens = static_cast<size_t>(shape.row_tokens);
  const auto dim = static_cast<size_t>(shape.dim);
  const auto chunks = static_cast<size_t>(shape.num_chunks);
  for (int round = 0; round < 8; ++round) {  // one program, whatever its rows hold
    // Eighths below 2^17, whose sums are exact in any order.
    std::vector<float> values(3 * tokens * dim);
    for (float& value : values) value = static_cast<float>(static_cast<int64_t>(rng() % 2001) - 1000) / 8.0F;
    std::vector<int32_t> ids(3 * tokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % (chunks + 1)) - 1;
    std::vector<int8_t> adjacent(3 * chunks * chunks);
    const uint64_t one_in = 1 + rng() % 6;
    for (int8_t& cell : adjacent) cell = rng() % one_in == 0 ? static_cast<int8_t>(1 + rng() % 3) : int8_t{0};
    // What is not finite reaches its own chunk, or none.
    ids[5] = -1;
    values[5 * dim] = std::numeric_limits<float>::quiet_NaN();
    values[6 * dim + 1] = round % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
    ASSERT_TRUE(arrays.Put(program->inputs[0], std::as_bytes(std::span(values))));
    ASSERT_TRUE(arrays.Put(program->inputs[1], std::as_bytes(std::span(ids))));
    ASSERT_TRUE(arrays.Put(program->inputs[2], std::as_bytes(std::span(adjacent))));
    const Status ran = arrays.Run(*made->program);
    ASSERT_TRUE(ran) << ToText(ran.error());
    const auto pooled = Fetched<float>(arrays, "pooled");
    const auto chosen = Fetched<int8_t>(arrays, "chosen");
    for (size_t row = 0; row < 3; ++row) {
      std::vector<float> want(chunks * dim);
      PoolChunks(std::span(values).subspan(row * tokens * dim, tokens * dim),
                 std::span(ids).subspan(row * tokens, tokens), {.dim = shape.dim, .num_chunks = shape.num_chunks},
                 want);
      for (size_t i = 0; i < want.size(); ++i) {
        const float got = pooled[row * chunks * dim + i];
        ASSERT_TRUE(got == want[i] || (std::isnan(got) && std::isnan(want[i])))
            << "row " << row << ", chunk " << i / dim << ": " << got << " for " << want[i];
      }
      std::vector<int8_t> first(chunks * chunks);
      ChooseNeighbours(std::span(adjacent).subspan(row * first.size(), first.size()), shape.num_chunks, shape.most,
                       first);
      ASSERT_EQ(0, std::memcmp(first.data(), chosen.data() + row * first.size(), first.size())) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace tessera
