// Runs on the caller's memory, on every lane: padded rows at odd addresses, one fused buffer, and a backward alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "conformance/conformance.h"

namespace tessera::conformance {
namespace {

class Memory : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Memory, testing::ValuesIn(HostLanes()), LaneTestName);

constexpr std::byte kUntouched{0xa5};

// Where the elements of a [B,H,T,D] tensor lie in a buffer.
struct Place {
  int64_t first = 0;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
};

// [B,H,T,D] or [B,T,H,D], with gaps in elements after rows, heads (or tokens) and batch rows.
struct Gaps {
  int64_t first = 0;
  int64_t row = 0;
  int64_t outer = 0;
  int64_t batch = 0;
  bool is_tokens_first = false;
};
Place PlaceOf(const std::vector<int64_t>& shape, const Gaps& gaps) {
  const int64_t row = shape[3] + gaps.row;
  const int64_t step = (gaps.is_tokens_first ? shape[1] : shape[2]) * row + gaps.outer;
  Place place{.first = gaps.first};
  place.head_stride = gaps.is_tokens_first ? row : step;
  place.token_stride = gaps.is_tokens_first ? step : row;
  place.batch_stride = (gaps.is_tokens_first ? shape[2] : shape[1]) * step + gaps.batch;
  return place;
}

// A buffer and the tensors in it.
class Buffer {
 public:
  Buffer(ElementType type, int64_t elements)
      : type_(type), bytes_(static_cast<size_t>(elements * BytesOf(type)), kUntouched) {}

  TensorRef At(const Place& place) {
    return {type_, bytes_.data() + place.first * BytesOf(type_), place.batch_stride, place.head_stride,
            place.token_stride};
  }
  void Write(const Tensor& from, const Place& place) {
    ForEachRow(from.shape, place, [&](std::byte* at, int64_t row, int64_t size) {
      std::memcpy(at, from.bytes.data() + row * size, static_cast<size_t>(size));
    });
  }
  // As a dense tensor; what has been read counts as untouched from then on.
  Tensor Take(const std::vector<int64_t>& shape, const Place& place) {
    Tensor out = Tensor::Zeros(type_, shape);
    ForEachRow(shape, place, [&](std::byte* at, int64_t row, int64_t size) {
      std::memcpy(out.bytes.data() + row * size, at, static_cast<size_t>(size));
      std::fill_n(at, size, kUntouched);
    });
    return out;
  }
  bool IsUntouched() const { return std::count(bytes_.begin(), bytes_.end(), kUntouched) == std::ssize(bytes_); }

 private:
  template <class Visit>
  void ForEachRow(const std::vector<int64_t>& shape, const Place& place, const Visit& visit) {
    int64_t row = 0;
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t t = 0; t < shape[2]; ++t) {
          const int64_t at = place.first + b * place.batch_stride + h * place.head_stride + t * place.token_stride;
          visit(bytes_.data() + at * BytesOf(type_), row++, shape[3] * BytesOf(type_));
        }
      }
    }
  }

  ElementType type_;
  std::vector<std::byte> bytes_;
};

struct Held {
  std::vector<int64_t> shape;
  Place place;
  Buffer buffer;
};

// The tensors of a setting, each in a buffer of its own.
class Tensors {
 public:
  Tensors(const Setting& setting, const Gaps& gaps) : setting_(setting) {
    const Shape& s = setting.contract.shape;
    const std::map<std::string, std::vector<int64_t>> shapes = {{"q", {s.batch, s.num_q_heads, s.q_len, s.dim_qk}},
                                                                {"k", {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}},
                                                                {"v", {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}},
                                                                {"do", {s.batch, s.num_q_heads, s.q_len, s.dim_v}}};
    for (const auto& [name, from] : {std::pair{"q", "q"},
                                     {"k", "k"},
                                     {"v", "v"},
                                     {"do", "do"},
                                     {"o", "do"},
                                     {"dq", "q"},
                                     {"dk", "k"},
                                     {"dv", "v"}}) {
      const std::vector<int64_t>& shape = shapes.at(from);
      const Place place = PlaceOf(shape, gaps);
      Held held{shape, place, Buffer(ToElementType(s.dtype), shape[0] * place.batch_stride + gaps.first)};
      if (setting.inputs.count(name) != 0) held.buffer.Write(setting.inputs.at(name), place);
      held_.emplace(name, std::move(held));
    }
    const size_t rows = static_cast<size_t>(s.batch * s.num_q_heads * s.q_len);
    lse.assign(rows, -7.0F);
    row_max.assign(rows, -7.0F);
    if (s.num_q_heads > 0 && setting.contract.score.sink_logits) {
      const Tensor& sinks = setting.inputs.at("sink_logits");
      for (int64_t h = 0; h < s.num_q_heads; ++h) sink_logits.push_back(static_cast<float>(sinks.At(h)));
      dsink_logits.resize(sink_logits.size());
    }
  }

  RunTensors Refs() {
    const auto ref = [&](const char* name) { return held_.at(name).buffer.At(held_.at(name).place); };
    RunTensors t;
    t.q = ref("q");
    t.k = ref("k");
    t.v = ref("v");
    t.dout = ref("do");
    t.o = ref("o");
    t.dq = ref("dq");
    t.dk = ref("dk");
    t.dv = ref("dv");
    t.lse = lse;
    t.row_max = row_max;
    t.sink_logits = sink_logits;
    t.dsink_logits = dsink_logits;
    t.delta = delta;
    return t;
  }
  Tensor Take(const char* name) { return held_.at(name).buffer.Take(held_.at(name).shape, held_.at(name).place); }
  bool IsUntouched(const char* name) const { return held_.at(name).buffer.IsUntouched(); }
  Tensor Stat(const std::vector<float>& values) const {
    const Shape& s = setting_.contract.shape;
    Tensor out = Tensor::Zeros(ElementType::kF32, {s.batch, s.num_q_heads, s.q_len});
    std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
    return out;
  }

  std::vector<float> lse, row_max, sink_logits, dsink_logits, delta;

 private:
  const Setting& setting_;
  std::map<std::string, Held> held_;
};

Setting MemorySetting(const std::string& lane, DType dtype, uint64_t seed) {
  const Contract contract = MakeContract({.mask = "causal and documents",
                                          .q_len = 61,
                                          .kv_len = 61,
                                          .batch = 2,
                                          .num_q_heads = 4,
                                          .num_kv_heads = 2,
                                          .dim_qk = 40,
                                          .dim_v = 24,
                                          .dtype = dtype,
                                          .sink_logits = true});
  Setting setting = MakeSetting(lane, contract, DocumentBatch(contract, {20, 30}), seed);
  setting.options.threads = 2;
  return setting;
}

TEST_P(Memory, AnyStridesAtAnyAddress_GiveTheBitsOfDenseTensors) {
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16, DType::kF16})) {
    const Setting setting = MemorySetting(GetParam(), dtype, seed);
    const RunOutcome want = RunAndCheck(setting);
    ASSERT_FALSE(want.error.has_value());
    for (const Gaps& gaps : {Gaps{}, Gaps{.is_tokens_first = true}, Gaps{.first = 1, .row = 3, .outer = 5, .batch = 7},
                             Gaps{.first = 3, .row = 1, .outer = 9, .batch = 2, .is_tokens_first = true}}) {
      SCOPED_TRACE(testing::Message() << ToText(dtype) << " row gap " << gaps.row
                                      << (gaps.is_tokens_first ? " bthd" : " bhtd"));
      Tensors tensors(setting, gaps);
      const RunOutcome got =
          RunStrided(setting.contract, setting.batch, tensors.Refs(), CpuTarget(), OptionsOf(setting));
      ASSERT_FALSE(got.error.has_value()) << ToText(*got.error);
      EXPECT_EQ(got.receipt.output_digest, want.receipt.output_digest);
      for (const char* name : {"o", "dq", "dk", "dv"}) {
        EXPECT_TRUE(tensors.Take(name) == want.outputs.at(name)) << name;
        EXPECT_TRUE(tensors.IsUntouched(name)) << name << " was written between its rows";
      }
    }
  }
}

TEST_P(Memory, BackwardAlone_WithOOrWithDelta) {
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16, DType::kF16})) {
    const Setting setting = MemorySetting(GetParam(), dtype, seed);
    const RunOutcome both = RunAndCheck(setting);
    ASSERT_FALSE(both.error.has_value());
    Tensors tensors(setting, {.first = 1, .row = 1});
    RunOptions options = OptionsOf(setting);
    options.backward = false;
    ASSERT_FALSE(RunStrided(setting.contract, setting.batch, tensors.Refs(), CpuTarget(), options).error.has_value());
    options.forward = false;
    options.backward = true;
    const RunOutcome from_o = RunStrided(setting.contract, setting.batch, tensors.Refs(), CpuTarget(), options);
    ASSERT_FALSE(from_o.error.has_value()) << ToText(*from_o.error);
    for (const char* name : {"dq", "dk", "dv"}) {
      EXPECT_TRUE(tensors.Take(name) == both.outputs.at(name)) << name << " " << ToText(dtype);
    }
    // With delta there is no o to read.
    const Tensor o = tensors.Take("o");
    const Tensor& dout = setting.inputs.at("do");
    const int64_t dim = o.shape[3];
    for (int64_t row = 0; row < o.NumElements() / dim; ++row) {
      double sum = 0.0;
      for (int64_t d = 0; d < dim; ++d) sum += o.At(row * dim + d) * dout.At(row * dim + d);
      tensors.delta.push_back(static_cast<float>(sum));
    }
    RunTensors refs = tensors.Refs();
    refs.o = {};
    const RunOutcome from_delta = RunStrided(setting.contract, setting.batch, refs, CpuTarget(), options);
    ASSERT_FALSE(from_delta.error.has_value()) << ToText(*from_delta.error);
    TensorMap gradients;
    for (const char* name : {"dq", "dk", "dv"}) gradients[name] = tensors.Take(name);
    ExpectMatchesOracle(setting, gradients);
    // A delta of another forward is really used.
    for (float& value : tensors.delta) value += 1.0F;
    refs.delta = tensors.delta;
    ASSERT_FALSE(RunStrided(setting.contract, setting.batch, refs, CpuTarget(), options).error.has_value());
    EXPECT_FALSE(tensors.Take("dq") == gradients.at("dq"));
  }
}

TEST_P(Memory, FusedQueriesKeysAndValues_InPlaceInOneBuffer) {
  const uint64_t seed = PrintedSeed();
  const Setting setting = MakeSetting(GetParam(),
                                      MakeContract({.q_len = 50,
                                                    .kv_len = 50,
                                                    .batch = 2,
                                                    .num_q_heads = 3,
                                                    .num_kv_heads = 3,
                                                    .dim_qk = 20,
                                                    .dim_v = 20,
                                                    .dtype = DType::kBf16}),
                                      {}, seed);
  const RunOutcome want = RunAndCheck(setting);
  ASSERT_FALSE(want.error.has_value());
  // [B, T, 3, H, D].
  const auto slice = [](int64_t n) {
    return Place{.first = n * 60, .batch_stride = 50 * 180, .head_stride = 20, .token_stride = 180};
  };
  Tensors tensors(setting, {});
  RunTensors refs = tensors.Refs();
  Buffer inputs(ElementType::kBf16, 2 * 50 * 180);
  Buffer gradients(ElementType::kBf16, 2 * 50 * 180);
  int64_t n = 0;
  for (const auto& [name, input, gradient] : {std::tuple{"q", &RunTensors::q, &RunTensors::dq},
                                              {"k", &RunTensors::k, &RunTensors::dk},
                                              {"v", &RunTensors::v, &RunTensors::dv}}) {
    inputs.Write(setting.inputs.at(name), slice(n));
    refs.*input = inputs.At(slice(n));
    refs.*gradient = gradients.At(slice(n++));
  }
  const RunOutcome got = RunStrided(setting.contract, {}, refs, CpuTarget(), OptionsOf(setting));
  ASSERT_FALSE(got.error.has_value()) << ToText(*got.error);
  EXPECT_EQ(got.receipt.output_digest, want.receipt.output_digest);
  n = 0;
  for (const char* name : {"dq", "dk", "dv"}) {
    EXPECT_TRUE(gradients.Take(want.outputs.at(name).shape, slice(n++)) == want.outputs.at(name)) << name;
  }
}

}  // namespace
}  // namespace tessera::conformance
