// What `script/bench cpu` measures, as data: the named cases, and for each machine what they have to reach.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/contract.h"

namespace tessera::bench {

enum class Mode : uint8_t { kForward, kBoth };
inline constexpr Mode kModes[] = {Mode::kForward, Mode::kBoth};
std::string_view ToText(Mode mode);  // "forward", "forward_backward"

// Requirements differ between the two kinds of machine, because their peers do.
enum class Machine : uint8_t { kArm, kX86 };
Machine ThisMachine();
std::string_view ToText(Machine machine);  // "aarch64", "x86-64"

// What a rate is held against.
struct Rule {
  enum class Kind : uint8_t {
    kNone,
    kPeer,    // factor x the named peer
    kBest,    // factor x the fastest peer
    kRoof,    // factor x the measured peak of the dtype
    kMatmul,  // factor x PyTorch's 2048^3 product of the dtype
    kCausal,  // factor x our own rate in the case named as `causal`
  };
  Kind kind = Kind::kNone;
  double factor = 0;
  std::string peer = {};
};
std::string ToText(const Rule& rule);  // "1.25x sdpa", "80% of roof"; "" for kNone

// One row of the requirement: this mode is measured on this machine; rules of kNone are printed for scale only.
struct Asked {
  Machine machine = Machine::kArm;
  Mode mode = Mode::kForward;
  Rule must = {};
  Rule goal = {};
};

enum class MaskKind : uint8_t { kCausal, kWindow, kDocuments, kRandomDocuments, kRandomTiles };

struct Case {
  std::string name;
  MaskKind mask = MaskKind::kCausal;  // every one but kRandomTiles is causal too
  int64_t tokens = 4096;
  int64_t dim = 128;
  DType dtype = DType::kF32;
  int64_t heads = 8;
  int64_t kv_heads = 8;
  int64_t documents = 8;
  double softcap = 0;
  int64_t percent = 100;    // kRandomTiles: how many of all tiles survive
  std::string causal = {};  // the case its rate is compared with
  std::vector<Asked> asked = {};
  int64_t left = 0;  // how far the window reaches back; 0: an eighth of the tokens, the query included, 511 of 4096

  int64_t window() const { return left > 0 ? left : tokens / 8 - 1; }
  std::vector<Mode> ModesOn(Machine machine) const;
  const Asked* Find(Machine machine, Mode mode) const;
};

const std::vector<Case>& TableCases();

}  // namespace tessera::bench
