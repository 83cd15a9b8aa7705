// See placement_bins.h.
#include "shard/placement_bins.h"

#include <algorithm>
#include <numeric>

namespace tessera::shard {
namespace {

// Deviations in parts of a shard's: fine enough for a token, and no sum of their squares is too large.
constexpr int64_t kUnit = int64_t{1} << 20;
constexpr int64_t kMost = int64_t{1} << 26;
constexpr int64_t kSteps = 1 << 18;  // candidates looked at in all
constexpr size_t kMostInPairs = 24;  // of a bin, for exchanges of two against two

class Filler {
 public:
  Filler(const std::vector<BinItem>& items, const std::vector<BinGoal>& goals, const BinScale& scale)
      : items_(items),
        bin_(items.size(), 0),
        tokens_(goals.size()),
        work_(goals.size()),
        members_(goals.size()),
        has_tokens_first_(scale.tokens_first) {
    // Whole numbers for each token, so that sums are exact.
    const int64_t token = std::max<int64_t>(kUnit / std::max<int64_t>(scale.tokens, 1), 1);
    for (const BinItem& item : items) {
      scaled_.push_back({item.tokens * token, Scaled(item.work, scale.work)});
    }
    for (size_t b = 0; b < goals.size(); ++b) {
      tokens_[b] = goals[b].tokens * token;
      work_[b] = Scaled(goals[b].work, scale.work);
    }
  }

  std::vector<uint32_t> Fill() {
    LongestFirst();
    Improve();
    if (has_tokens_first_) {
      steps_ = 0;
      are_tokens_first_ = true;
      Improve();
    }
    return bin_;
  }

 private:
  void Improve() {
    while (steps_ < kSteps && (Moves() || Swaps() || PairSwaps())) {
    }
  }

  static int64_t Scaled(int64_t value, int64_t whole) {
    const int64_t one = std::max<int64_t>(whole, 1);
    return std::min(value / one, kMost / kUnit) * kUnit + value % one * kUnit / one;
  }

  void LongestFirst() {
    std::vector<size_t> order(items_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items_[a].work > items_[b].work; });
    for (const size_t item : order) {
      size_t best = 0;
      for (size_t b = 1; b < tokens_.size(); ++b) {
        if (Better(item, b, best)) best = b;
      }
      Put(item, best);
    }
  }

  // Bins that have room come first, and of those the one that wants most work; then the one with most room.
  bool Better(size_t item, size_t a, size_t b) const {
    const bool a_fits = tokens_[a] >= scaled_[item].tokens;
    const bool b_fits = tokens_[b] >= scaled_[item].tokens;
    if (a_fits != b_fits) return a_fits;
    return a_fits ? work_[a] > work_[b] : tokens_[a] > tokens_[b];
  }

  void Put(size_t item, size_t bin) {
    bin_[item] = static_cast<uint32_t>(bin);
    members_[bin].push_back(item);
    Take(bin, scaled_[item], 1);
  }
  void Take(size_t bin, const BinItem& what, int64_t sign) {
    tokens_[bin] -= sign * what.tokens;
    work_[bin] -= sign * what.work;
  }
  // Whether it helps that bin a gives away what weighs `net` and b takes it.
  bool Helps(size_t a, size_t b, const BinItem& net) {
    ++steps_;
    const auto grows_by = [](int64_t a_left, int64_t b_left, int64_t moved) {
      const auto square = [](int64_t x) { return x * x; };
      return square(a_left + moved) + square(b_left - moved) - square(a_left) - square(b_left);
    };
    const int64_t tokens = grows_by(tokens_[a], tokens_[b], net.tokens);
    const int64_t work = grows_by(work_[a], work_[b], net.work);
    if (are_tokens_first_) return tokens != 0 ? tokens < 0 : work < 0;
    return tokens + work < 0;
  }
  void Shift(size_t a, size_t b, const BinItem& net) {
    Take(a, net, -1);
    Take(b, net, 1);
  }
  static BinItem Minus(const BinItem& x, const BinItem& y) { return {x.tokens - y.tokens, x.work - y.work}; }
  static BinItem Plus(const BinItem& x, const BinItem& y) { return {x.tokens + y.tokens, x.work + y.work}; }

  void Rehome(size_t from, size_t at, size_t to) {
    const size_t item = members_[from][at];
    members_[from].erase(members_[from].begin() + static_cast<int64_t>(at));
    members_[to].push_back(item);
    bin_[item] = static_cast<uint32_t>(to);
  }

  bool Moves() {
    bool has_helped = false;
    for (size_t a = 0; a < members_.size(); ++a) {
      for (size_t b = 0; b < members_.size(); ++b) {
        if (a == b) continue;
        for (size_t i = 0; i < members_[a].size() && steps_ < kSteps;) {
          const BinItem net = scaled_[members_[a][i]];
          if (!Helps(a, b, net)) {
            ++i;
            continue;
          }
          Shift(a, b, net);
          Rehome(a, i, b);
          has_helped = true;
        }
      }
    }
    return has_helped;
  }

  void Exchange(size_t a, size_t i, size_t b, size_t j) {
    std::swap(members_[a][i], members_[b][j]);
    bin_[members_[a][i]] = static_cast<uint32_t>(a);
    bin_[members_[b][j]] = static_cast<uint32_t>(b);
  }

  bool Swaps() {
    bool has_helped = false;
    for (size_t a = 0; a < members_.size(); ++a) {
      for (size_t b = a + 1; b < members_.size(); ++b) {
        for (size_t i = 0; i < members_[a].size(); ++i) {
          for (size_t j = 0; j < members_[b].size() && steps_ < kSteps; ++j) {
            const BinItem net = Minus(scaled_[members_[a][i]], scaled_[members_[b][j]]);
            if (!Helps(a, b, net)) continue;
            Shift(a, b, net);
            Exchange(a, i, b, j);
            has_helped = true;
          }
        }
      }
    }
    return has_helped;
  }

  // Two against one or two, where the other exchanges found nothing more.
  bool PairSwaps() {
    bool has_helped = false;
    for (size_t a = 0; a < members_.size(); ++a) {
      for (size_t b = 0; b < members_.size(); ++b) {
        if (a == b || members_[a].size() > kMostInPairs || members_[b].size() > kMostInPairs) continue;
        while (PairSwap(a, b)) has_helped = true;
      }
    }
    return has_helped;
  }
  bool PairSwap(size_t a, size_t b) {
    const std::vector<size_t>& from = members_[a];
    const std::vector<size_t>& to = members_[b];
    for (size_t i = 0; i < from.size(); ++i) {
      for (size_t j = i + 1; j < from.size(); ++j) {
        const BinItem gives = Plus(scaled_[from[i]], scaled_[from[j]]);
        for (size_t k = 0; k < to.size(); ++k) {
          const BinItem for_one = Minus(gives, scaled_[to[k]]);
          if (steps_ >= kSteps) return false;
          if (Helps(a, b, for_one)) {
            Shift(a, b, for_one);
            Exchange(a, i, b, k);
            Rehome(a, j, b);
            return true;
          }
          for (size_t l = k + 1; a < b && l < to.size() && steps_ < kSteps; ++l) {
            const BinItem for_two = Minus(for_one, scaled_[to[l]]);
            if (!Helps(a, b, for_two)) continue;
            Shift(a, b, for_two);
            Exchange(a, i, b, k);
            Exchange(a, j, b, l);
            return true;
          }
        }
      }
    }
    return false;
  }

  const std::vector<BinItem>& items_;
  std::vector<BinItem> scaled_;
  std::vector<uint32_t> bin_;
  std::vector<int64_t> tokens_;  // still wanted; negative where there is too much
  std::vector<int64_t> work_;
  std::vector<std::vector<size_t>> members_;
  int64_t steps_ = 0;
  const bool has_tokens_first_;
  bool are_tokens_first_ = false;
};

}  // namespace

std::vector<uint32_t> FillBins(const std::vector<BinItem>& items, const std::vector<BinGoal>& goals,
                               const BinScale& scale) {
  return Filler(items, goals, scale).Fill();
}

}  // namespace tessera::shard
