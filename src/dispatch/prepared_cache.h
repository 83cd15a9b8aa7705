// An engine's cache of what it prepared, bounded in number and in bytes. Thread-safe: when several threads ask for one
// key at once, one builds and the others wait. What is given up stays alive for those that use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dispatch/prepare.h"

namespace tessera {

// What a request got, with the totals as of then.
struct CachedPrepared {
  std::shared_ptr<const Prepared> prepared;
  bool is_hit = false;
  bool is_same_spelling = false;  // and not only the same meaning
  CacheStats stats;
};

class PreparedCache {
 public:
  PreparedCache(size_t capacity, int64_t max_bytes);  // entries, 0 keeps nothing; and about as many bytes
  ~PreparedCache();

  Result<CachedPrepared> Get(const PrepareRequest& request);
  CacheStats stats() const;
  void Clear();  // forgets every entry; counters stay

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
