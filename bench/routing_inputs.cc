#include "routing_inputs.h"

#include <algorithm>

namespace tessera::bench {
namespace {

// A counter put through a mixer: the same numbers everywhere, wherever one starts.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 1) {}
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15U;
    uint64_t mixed = state_;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebU;
    return mixed ^ mixed >> 31;
  }
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound)); }
  // Mean 0, deviation 1: a sum of four 16-bit numbers, near enough to a bell and exact in f32.
  float Bell() {
    const uint64_t bits = Next();
    const auto sum =
        static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return static_cast<float>(sum - 2 * 65535) * (1.7320508F / 65536.0F);
  }
  void Fill(std::vector<float>& out) {
    for (float& value : out) value = Bell();
  }

 private:
  uint64_t state_;
};

// One KV head's directions: of length about sqrt(dim), as noise has.
struct Structure {
  std::vector<int64_t> run_of;           // [len]
  std::vector<std::vector<float>> runs;  // directions
  std::vector<int64_t> needle_begin;     // ascending
  std::vector<std::vector<float>> needles;
  std::vector<std::vector<int64_t>> sought;  // [run]: needles
};

Structure MakeStructure(const RoutingInputs& inputs, Random& random) {
  Structure out;
  const auto direction = [&] {
    std::vector<float> values(static_cast<size_t>(inputs.dim));
    random.Fill(values);
    return values;
  };
  for (int64_t begin = 0; begin < inputs.len; begin += inputs.needle_every) {
    out.needle_begin.push_back(begin + random.Below(std::max<int64_t>(1, inputs.needle_every - inputs.needle_tokens)));
    out.needles.push_back(direction());
  }
  while (static_cast<int64_t>(out.run_of.size()) < inputs.len) {
    const auto begin = static_cast<int64_t>(out.run_of.size());
    const int64_t count = std::min(inputs.run / 2 + random.Below(inputs.run + 1) + 1, inputs.len - begin);
    out.run_of.insert(out.run_of.end(), static_cast<size_t>(count), static_cast<int64_t>(out.runs.size()));
    out.runs.push_back(direction());
    // Needles that ended before the run begins: a causal mask lets the whole run see them.
    const auto earlier = std::partition_point(out.needle_begin.begin(), out.needle_begin.end(),
                                              [&](int64_t at) { return at + inputs.needle_tokens <= begin; });
    const int64_t choice = earlier - out.needle_begin.begin();
    std::vector<int64_t>& sought = out.sought.emplace_back();
    for (int64_t n = 0; n < std::min(inputs.needles_per_run, choice); ++n) sought.push_back(random.Below(choice));
    std::sort(sought.begin(), sought.end());
    sought.erase(std::unique(sought.begin(), sought.end()), sought.end());
  }
  return out;
}

void Add(float* to, const std::vector<float>& direction, float strength) {
  for (size_t d = 0; d < direction.size(); ++d) to[d] += strength * direction[d];
}

}  // namespace

RoutingTensors MakeRoutingTensors(const RoutingInputs& inputs) {
  Random random(inputs.seed);
  RoutingTensors out;
  const auto per_head = static_cast<size_t>(inputs.len * inputs.dim);
  out.q.resize(per_head * static_cast<size_t>(inputs.num_q_heads));
  out.k.resize(per_head * static_cast<size_t>(inputs.num_kv_heads));
  out.v.resize(out.k.size());
  random.Fill(out.q);
  random.Fill(out.k);
  random.Fill(out.v);
  const int64_t group = inputs.num_q_heads / inputs.num_kv_heads;
  for (int64_t head = 0; head < inputs.num_kv_heads; ++head) {
    const Structure structure = MakeStructure(inputs, random);
    for (int64_t t = 0; t < inputs.len; ++t) {
      const int64_t run = structure.run_of[static_cast<size_t>(t)];
      Add(out.k.data() + (head * inputs.len + t) * inputs.dim, structure.runs[static_cast<size_t>(run)], inputs.local);
      for (int64_t g = head * group; g < (head + 1) * group; ++g) {
        float* query = out.q.data() + (g * inputs.len + t) * inputs.dim;
        Add(query, structure.runs[static_cast<size_t>(run)], inputs.local);
        for (const int64_t n : structure.sought[static_cast<size_t>(run)]) {
          Add(query, structure.needles[static_cast<size_t>(n)], inputs.needle);
        }
      }
    }
    for (size_t n = 0; n < structure.needles.size(); ++n) {
      const int64_t begin = structure.needle_begin[n];
      for (int64_t t = begin; t < std::min(begin + inputs.needle_tokens, inputs.len); ++t) {
        Add(out.k.data() + (head * inputs.len + t) * inputs.dim, structure.needles[n], inputs.needle);
      }
    }
  }
  return out;
}

}  // namespace tessera::bench
