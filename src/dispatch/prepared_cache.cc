// See prepared_cache.h: least recently used first out, one build per key whoever asks.
//
// A request is looked up twice at most. By spelling, which costs a hash of its values; then, once per spelling, by
// meaning, which costs the preparation itself: only a prepared contract knows what it means. A preparation that turns
// out to mean what an entry means is thrown away, and the entry learns the spelling.
#include "dispatch/prepared_cache.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <list>
#include <mutex>
#include <unordered_map>

#include "dispatch/limits.h"

namespace tessera {
namespace {

struct SpellingHash {
  size_t operator()(const Hash128& hash) const {
    size_t out = 0;
    std::memcpy(&out, hash.data(), sizeof(out));
    return out;
  }
};

struct Entry {
  std::shared_ptr<const Prepared> prepared;
  std::vector<Hash128> spellings;  // oldest first
};
using Entries = std::list<Entry>;  // used last first

using Outcome = Result<std::shared_ptr<const Prepared>>;

}  // namespace

struct PreparedCache::State {
  State(size_t capacity_in, int64_t max_bytes_in) : capacity(capacity_in), max_bytes(max_bytes_in) {}

  const size_t capacity;
  const int64_t max_bytes;
  std::mutex mutex;
  CacheStats stats;  // entries and bytes are those of `entries`
  Entries entries;
  std::unordered_map<Hash128, Entries::iterator, SpellingHash> by_spelling;
  std::unordered_map<ForwardCacheKey, Entries::iterator> by_key;
  std::unordered_map<Hash128, std::shared_future<Outcome>, SpellingHash> in_flight;

  // All below with the mutex held.

  CachedPrepared Use(Entries::iterator entry, const Hash128& spelling) {
    entries.splice(entries.begin(), entries, entry);
    ++stats.hits;
    return {entry->prepared, true, entry->prepared->spelling == spelling, stats};
  }

  void Learn(Entries::iterator entry, const Hash128& spelling) {
    if (!by_spelling.emplace(spelling, entry).second) return;
    entry->spellings.push_back(spelling);
    if (entry->spellings.size() <= kMaxSpellings) return;
    by_spelling.erase(entry->spellings.front());
    entry->spellings.erase(entry->spellings.begin());
  }

  void Remove(Entries::iterator entry) {
    for (const Hash128& spelling : entry->spellings) by_spelling.erase(spelling);
    by_key.erase(entry->prepared->key);
    stats.bytes -= entry->prepared->bytes;
    --stats.entries;
    entries.erase(entry);
  }

  void Keep(const std::shared_ptr<const Prepared>& made) {
    if (capacity == 0 || made->bytes > max_bytes) return;
    entries.push_front({made, {}});
    ++stats.entries;
    stats.bytes += made->bytes;
    entries.front().spellings.reserve(kMaxSpellings + 1);  // so that Learn cannot fail halfway
    by_key.emplace(made->key, entries.begin());
    Learn(entries.begin(), made->spelling);
    while (entries.size() > capacity || stats.bytes > max_bytes) {
      Remove(std::prev(entries.end()));
      ++stats.evictions;
    }
  }

  // What a builder brings: new, or another spelling of what is here.
  CachedPrepared Take(const std::shared_ptr<const Prepared>& made) {
    if (const auto found = by_key.find(made->key); found != by_key.end()) {
      Learn(found->second, made->spelling);
      ++stats.respelled;
      return Use(found->second, made->spelling);
    }
    Keep(made);
    ++stats.misses;
    ++stats.builds;
    return {made, false, true, stats};
  }
};

PreparedCache::PreparedCache(size_t capacity, int64_t max_bytes)
    : state_(std::make_unique<State>(capacity, max_bytes)) {}
PreparedCache::~PreparedCache() = default;

Result<CachedPrepared> PreparedCache::Get(const PrepareRequest& request) {
  State& state = *state_;
  const Hash128 spelling = SpellingOf(request);
  std::promise<Outcome> promise;
  std::shared_future<Outcome> other;
  {
    const std::lock_guard lock(state.mutex);
    if (const auto found = state.by_spelling.find(spelling); found != state.by_spelling.end()) {
      return state.Use(found->second, spelling);
    }
    if (const auto flight = state.in_flight.find(spelling); flight != state.in_flight.end()) {
      other = flight->second;
    } else {
      state.in_flight.emplace(spelling, promise.get_future().share());
    }
  }
  if (other.valid()) {
    const Outcome& made = other.get();  // throws what the builder threw
    const std::lock_guard lock(state.mutex);
    if (!made) {
      ++state.stats.misses;
      return tl::unexpected(made.error());
    }
    // The builder may have met an entry of the same meaning, and it may be gone again; either way this one is right.
    if (const auto found = state.by_key.find((*made)->key); found != state.by_key.end())
      return state.Use(found->second, spelling);
    ++state.stats.hits;
    return CachedPrepared{*made, true, true, state.stats};
  }
  try {
    const Outcome made = Prepare(request);
    Result<CachedPrepared> got;
    {
      const std::lock_guard lock(state.mutex);
      state.in_flight.erase(spelling);
      if (made) {
        got = state.Take(*made);
      } else {
        ++state.stats.misses;
        got = tl::unexpected(made.error());
      }
    }
    promise.set_value(made);
    return got;
  } catch (...) {
    {
      const std::lock_guard lock(state.mutex);
      state.in_flight.erase(spelling);
      ++state.stats.misses;
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

CacheStats PreparedCache::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

void PreparedCache::Clear() {
  const std::lock_guard lock(state_->mutex);
  while (!state_->entries.empty()) state_->Remove(state_->entries.begin());
}

}  // namespace tessera
