// See tpu_schedule.h.
#include "tpu_schedule.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <optional>
#include <set>
#include <utility>

namespace tessera::program {
namespace {

constexpr int64_t kDelay = 4;  // bundles after a branch, which run whether it is taken or not

auto Misread() { return Fail(ErrorCode::kFileRead, "a schedule that is written otherwise than is known here"); }

// "   0x1f2 LB: > {" begins a bundle; gives where its text begins.
std::optional<size_t> BundleAt(std::string_view line) {
  size_t at = 0;
  const auto skip_blanks = [&] {
    while (at < line.size() && line[at] == ' ') ++at;
  };
  const auto is_hex = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0 || (c >= 'a' && c <= 'f'); };
  skip_blanks();
  if (at >= line.size() || line[at] != '0') return std::nullopt;
  ++at;
  if (at < line.size() && line[at] == 'x') {
    ++at;
    while (at < line.size() && is_hex(line[at])) ++at;
  }
  if (at >= line.size() || line[at] != ' ') return std::nullopt;
  skip_blanks();
  if (at + 1 < line.size() && std::isupper(static_cast<unsigned char>(line[at])) != 0) at += 2;
  skip_blanks();
  if (at >= line.size() || line[at] != ':') return std::nullopt;
  ++at;
  while (at < line.size() && (line[at] == ' ' || line[at] == '>')) ++at;
  if (at >= line.size() || line[at] != '{') return std::nullopt;
  return at + 1;
}

// Calls `found` with the number after each `word`.
void ForNumbers(std::string_view text, std::string_view word, const std::function<void(int64_t)>& found) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    size_t digit = at + word.size();
    if (digit >= text.size() || std::isdigit(static_cast<unsigned char>(text[digit])) == 0) continue;
    int64_t number = 0;
    for (; digit < text.size() && std::isdigit(static_cast<unsigned char>(text[digit])) != 0; ++digit) {
      number = number * 10 + (text[digit] - '0');
    }
    found(number);
  }
}

int64_t CountOf(std::string_view text, std::string_view word) {
  int64_t count = 0;
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// Parts as they were found, put inside of each other.
SchedulePart Nested(std::vector<SchedulePart> found, int64_t size) {
  std::stable_sort(found.begin(), found.end(), [](const SchedulePart& a, const SchedulePart& b) {
    return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
  });
  std::vector<SchedulePart> open = {{0, size, false}};
  const auto close = [&] {
    SchedulePart done = std::move(open.back());
    open.pop_back();
    open.back().parts.push_back(std::move(done));
  };
  for (SchedulePart& part : found) {
    while (open.size() > 1 && open.back().end < part.end) close();
    open.push_back(std::move(part));
  }
  while (open.size() > 1) close();
  return std::move(open.front());
}

bool Overlaps(const SchedulePart& part) {
  return part.own() < 0 || std::any_of(part.parts.begin(), part.parts.end(), Overlaps);
}

class Counter {
 public:
  Counter(const Schedule& schedule, const ScheduledKernel& kernel) : bundles_(schedule.bundles), kernel_(kernel) {
    grid_ = GridOf(schedule.root);
  }

  Result<KernelBundles> Count() {
    const std::vector<const SchedulePart*> walks = LoopsIn(*grid_);
    if (walks.empty()) return Misread();
    const SchedulePart* walk = walks[0];
    const std::vector<const SchedulePart*> outside = BranchesOutside(*grid_, *walk);
    KernelBundles counted;
    int64_t chunk = 0, joins = 0;
    for (const SchedulePart* part : outside) {
      const std::vector<int64_t>& registers = kernel_.chunk_registers;
      if (std::find(registers.begin(), registers.end(), StoresOf(*part)) != registers.end()) chunk += part->size();
      // Sums of scores in range are joined to the row's: nothing to do where no tile was in range.
      if (kernel_.has_range && part->begin >= walk->end && Raises(*part)) joins += part->size();
    }
    counted["row"] = grid_->size() - walk->size() - chunk - joins;
    if (!kernel_.chunk_registers.empty()) counted["chunk"] = chunk;
    std::vector<std::string> names = {"full", "span", "general"};
    if (kernel_.has_range) names = {"full", "range", "span", "general"};
    if (kernel_.walks_by_two) {
      // A body for both, of which none, one or both are masked, or a loop over each.
      const std::vector<const SchedulePart*> bodies = BodiesOf(*walk);
      const std::vector<std::string> pairs = {"two full", "full and span", "two span"};
      if (bodies.size() != pairs.size() + 1) return Misread();
      for (size_t i = 0; i < pairs.size(); ++i) counted[pairs[i]] = Around(*walk) + bodies[i]->size();
      const std::vector<const SchedulePart*> each = LoopsIn(*bodies.back());
      if (each.empty()) return Misread();
      counted["round"] = Around(*walk) + bodies.back()->size() - each[0]->size();
      walk = each[0];
    }
    const std::vector<const SchedulePart*> bodies = BodiesOf(*walk);
    if (bodies.size() != names.size()) return Misread();
    for (size_t i = 0; i < names.size(); ++i) counted[names[i]] = Around(*walk) + SizeOf(*bodies[i]);
    // Any mask is written and used part by part of the keys.
    const std::vector<const SchedulePart*> parts = LoopsIn(*bodies.back());
    if (!parts.empty()) counted["general"] += (kernel_.general_parts - 1) * parts[0]->size();
    return counted;
  }

 private:
  bool Any(const SchedulePart& part, bool Bundle::*what) const {
    return std::any_of(bundles_.begin() + part.begin, bundles_.begin() + part.end,
                       [&](const Bundle& bundle) { return bundle.*what; });
  }
  bool Multiplies(const SchedulePart& part) const { return Any(part, &Bundle::multiplies); }
  bool Raises(const SchedulePart& part) const { return Any(part, &Bundle::raises); }
  int64_t StoresOf(const SchedulePart& part) const {
    int64_t stores = 0;
    for (int64_t at = part.begin; at < part.end; ++at) stores += bundles_[static_cast<size_t>(at)].stores;
    return stores;
  }

  // The largest outermost loop. A grid whose size is only known when it runs is inside a branch: it may be empty.
  static const SchedulePart* GridOf(const SchedulePart& root) {
    const SchedulePart* largest = nullptr;
    std::vector<const SchedulePart*> branches = {&root};
    while (!branches.empty()) {
      const SchedulePart* branch = branches.back();
      branches.pop_back();
      for (const SchedulePart& part : branch->parts) {
        if (!part.is_loop) {
          branches.push_back(&part);
        } else if (largest == nullptr || part.size() > largest->size()) {
          largest = &part;
        }
      }
    }
    return largest == nullptr ? &root : largest;
  }
  // The outermost loops in it that multiply.
  std::vector<const SchedulePart*> LoopsIn(const SchedulePart& part) const {
    std::vector<const SchedulePart*> found, inside = {&part};
    for (size_t i = 0; i < inside.size(); ++i) {
      for (const SchedulePart& inner : inside[i]->parts) {
        (inner.is_loop && Multiplies(inner) ? found : inside).push_back(&inner);
      }
    }
    return found;
  }
  // The branches of a step that are not around its walk.
  std::vector<const SchedulePart*> BranchesOutside(const SchedulePart& part, const SchedulePart& walk) const {
    std::vector<const SchedulePart*> found, inside = {&part};
    for (size_t i = 0; i < inside.size(); ++i) {
      for (const SchedulePart& inner : inside[i]->parts) {
        if (&inner == &walk || inner.is_loop) continue;
        (inner.begin <= walk.begin && walk.end <= inner.end ? inside : found).push_back(&inner);
      }
    }
    return found;
  }
  std::vector<const SchedulePart*> BodiesOf(const SchedulePart& part) const {
    std::vector<const SchedulePart*> bodies;
    for (const SchedulePart& inner : part.parts) {
      if (Multiplies(inner)) bodies.push_back(&inner);
    }
    return bodies;
  }
  int64_t Around(const SchedulePart& loop) const {
    int64_t around = loop.own();
    for (const SchedulePart& part : loop.parts) around += Multiplies(part) ? 0 : part.size();
    return around;
  }
  // Of a tile's body. With a softcap it has two, of which the first is the bounded one. What does not multiply is there
  // once for each row: the sums of scores in range begin.
  int64_t SizeOf(const SchedulePart& body) const {
    const std::vector<const SchedulePart*> choices = BodiesOf(body);
    if (choices.size() > 1) return body.own() + choices[0]->size();
    int64_t once = 0;
    for (const SchedulePart& part : body.parts) once += part.is_loop || Multiplies(part) ? 0 : part.size();
    return body.size() - once;
  }

  const std::vector<Bundle>& bundles_;
  const ScheduledKernel& kernel_;
  const SchedulePart* grid_ = nullptr;
};

}  // namespace

int64_t SchedulePart::own() const {
  int64_t own = size();
  for (const SchedulePart& part : parts) own -= part.size();
  return own;
}

Result<Schedule> ReadSchedule(std::string_view text) {
  Schedule schedule;
  std::map<int64_t, int64_t> starts;                  // of regions
  std::vector<std::pair<int64_t, int64_t>> branches;  // a bundle, and the region that it goes to
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (const std::optional<size_t> begin = BundleAt(line)) {
      schedule.bundles.emplace_back();
      line.remove_prefix(*begin);
    }
    if (schedule.bundles.empty()) continue;
    const int64_t at = static_cast<int64_t>(schedule.bundles.size()) - 1;
    Bundle& bundle = schedule.bundles.back();
    bundle.multiplies |= line.find("vmatmul") != std::string_view::npos;
    bundle.raises |= line.find("vexp2") != std::string_view::npos || line.find("vpow2") != std::string_view::npos;
    bundle.stores += static_cast<int>(CountOf(line, " vst "));
    const auto start = [&](int64_t region) { starts.emplace(region, at); };
    ForNumbers(line, "Start region ", start);
    ForNumbers(line, "Start/End empty region ", start);
    if (line.find("sbr.rel") == std::string_view::npos) continue;
    ForNumbers(line, "target = $region", [&](int64_t region) { branches.emplace_back(at, region); });
  }
  const auto size = static_cast<int64_t>(schedule.bundles.size());
  std::vector<SchedulePart> found;
  std::set<std::pair<int64_t, int64_t>> loops;
  for (const auto& [at, region] : branches) {
    const int64_t after = std::min(at + 1 + kDelay, size);
    const auto known = starts.find(region);
    const int64_t start = known == starts.end() ? after : known->second;
    if (start <= at) loops.emplace(start, after);
    if (start <= at) found.push_back({start, after, true});
    if (start > after) found.push_back({after, start, false});  // what is skipped ends where the branch goes to
  }
  // A loop that may have no round at all is skipped by a branch, which is the same bundles once more.
  std::erase_if(found, [&](const SchedulePart& p) { return !p.is_loop && loops.count({p.begin, p.end}) != 0; });
  schedule.root = Nested(std::move(found), size);
  if (size == 0 || Overlaps(schedule.root)) return Misread();
  return schedule;
}

Result<KernelBundles> CountBundles(const Schedule& schedule, const ScheduledKernel& kernel) {
  return Counter(schedule, kernel).Count();
}

}  // namespace tessera::program
