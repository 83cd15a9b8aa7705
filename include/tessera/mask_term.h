// Mask terms of the user's own. A program registers a term in a MaskTerms, an engine's or one of its own; contracts
// that are read with it may name the term beside the built-in ones, and planner, lanes, keys and receipts treat it like
// them.
//
// A term is a pure function of the lengths, the offset, the head and its parameters: it says which pairs may attend,
// either as runs or by answering for rectangles. Not a goal: terms that read a batch, or that change a score.
// docs/contract.md, "A term of your own", explains it by example.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

#pragma GCC visibility push(default)

namespace tessera {

// What a term is asked about. Row i is a query, column j a key, and p = i + offset as for the built-in terms.
struct MaskTermInput {
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t offset = 0;
  int64_t head = 0;                          // the query head; 0 for every head unless the spec says per_head
  std::span<const int64_t> parameters = {};  // as written in the mask; valid during the call only
};

// The pairs with q in [q_begin, q_end) and key in [max(kv_begin, q + diag_begin), min(kv_end, q + diag_end)).
struct MaskRun {
  static constexpr int64_t kNone = int64_t{1} << 40;  // -kNone / kNone: no diagonal bound
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t kv_begin = 0;
  int64_t kv_end = 0;
  int64_t diag_begin = -kNone;
  int64_t diag_end = kNone;
  bool operator==(const MaskRun&) const = default;
};

// Rows [q_begin, q_end) by keys [kv_begin, kv_end), never empty.
struct MaskRect {
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t kv_begin = 0;
  int64_t kv_end = 0;
};
enum class MaskCover : uint8_t { kEmpty, kFull, kMixed };

// A term in one of two forms: `runs`, or `cover` together with `allows`.
struct MaskTermSpec {
  std::string name = {};  // a-z, then a-z, 0-9 and _; at most 64 characters, and no word of the mask language
  int64_t version = 1;    // 1 or more; part of the canonical text and of the contract key
  int min_parameters = 0;
  int max_parameters = 0;  // at most 16; each is an integer from -2^30 to 2^30
  bool per_head = false;   // whether the answer depends on MaskTermInput::head

  // The runs form. The term holds on the union of the runs, which come with q_begin ascending or equal, inside
  // 0..q_len and 0..kv_len; empty ones are skipped. At most 2^22 runs.
  std::function<std::vector<MaskRun>(const MaskTermInput& input)> runs = {};

  // The rectangle form. `cover` says whether all, none or some pairs of a rectangle may attend (kMixed is always a
  // safe answer, at a price), and `allows` decides one pair. Rectangles are halved at multiples of powers of two until
  // they are not mixed or hold at most 64 pairs, so the cost grows with the length of the mask's edges; at most 2^24
  // rectangles.
  std::function<MaskCover(const MaskTermInput& input, const MaskRect& rect)> cover = {};
  std::function<bool(const MaskTermInput& input, int64_t q, int64_t k)> allows = {};
};

// A term that was registered: the spec as it was given, and the sets that its function's answers amounted to, of which
// a limited number is kept. Only MaskTerms makes one. A contract that names it keeps it alive, whatever becomes of the
// MaskTerms.
class RegisteredTerm : public MaskTermSpec {
 public:
  RegisteredTerm(const RegisteredTerm&) = delete;
  RegisteredTerm& operator=(const RegisteredTerm&) = delete;
  ~RegisteredTerm();

  // Of this registration: no other of the process has it, before or after. An address may be used again.
  int64_t id() const { return id_; }

 private:
  friend class MaskTerms;
  friend struct RegisteredTermAccess;
  struct Kept;
  explicit RegisteredTerm(MaskTermSpec spec);
  const int64_t id_;
  const std::unique_ptr<Kept> kept_;
};

// Registered terms by name. Every engine has one; a program may make others and read contracts with them. Safe from any
// number of threads at once. Two MaskTerms know nothing of each other: one name may mean two things.
class MaskTerms {
 public:
  MaskTerms() = default;
  MaskTerms(const MaskTerms&) = delete;
  MaskTerms& operator=(const MaskTerms&) = delete;

  // A name is registered once: a second registration is an error even with the same version, because two functions
  // cannot be compared. Every fault of the spec is reported.
  //
  // The functions may be called from any thread, several at once, and must answer the same for the same input: each
  // answer is asked for twice, kept and reused. One that throws, leaves the lengths, orders its runs wrongly or changes
  // its mind is a violation of the contract that names it (Validate says which term and row), never undefined.
  Status Register(MaskTermSpec spec);

  // The term of that name, for a MaskTerm made without text; null when there is none.
  std::shared_ptr<const RegisteredTerm> Find(std::string_view name) const;

  // Every term, by name.
  std::vector<std::shared_ptr<const RegisteredTerm>> All() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const RegisteredTerm>, std::less<>> terms_;
};

}  // namespace tessera
#pragma GCC visibility pop
