// A bounded set of things by key: the one that nobody asked for the longest makes room. Who holds one keeps it, also
// when it is no longer here. Safe from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace tessera::lanes::xla {

template <class Key, class Thing>
class Recent {
 public:
  explicit Recent(size_t limit) : limit_(limit) {}

  // Made empty when it is not here.
  std::shared_ptr<Thing> Get(const Key& key) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[key];
    if (entry.thing == nullptr) entry.thing = std::make_shared<Thing>();
    entry.last_used = ++uses_;
    const std::shared_ptr<Thing> thing = entry.thing;
    if (entries_.size() > limit_) {
      entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
        return a.second.last_used < b.second.last_used;
      }));
    }
    return thing;
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    std::shared_ptr<Thing> thing;
    uint64_t last_used = 0;
  };

  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
  uint64_t uses_ = 0;
  const size_t limit_;
};

}  // namespace tessera::lanes::xla
