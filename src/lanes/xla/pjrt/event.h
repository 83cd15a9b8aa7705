// Something that a plugin is doing in the background, to be waited for.
#pragma once

#include "lanes/xla/pjrt/handle.h"

namespace tessera::pjrt {

class Event {
 public:
  // What to do with work nobody waited for: leave it to the plugin, or wait, where it still writes into our memory.
  enum class OnDrop { kLeave, kAwait };

  Event() = default;
  Event(const api::Table& table, api::Event* raw, OnDrop on_drop = OnDrop::kLeave)
      : handle_(&table, raw), on_drop_(on_drop) {}
  Event(Event&&) = default;
  Event& operator=(Event&& other) noexcept;
  ~Event() { Drop(); }

  // Blocks until the work is done; its error, if it failed. An event without work is done.
  Status Await() const;
  Result<bool> IsReady() const;

 private:
  void Drop();

  Handle<api::Event, api::EventDestroyArgs, &api::EventDestroyArgs::event> handle_;
  OnDrop on_drop_ = OnDrop::kLeave;
};

}  // namespace tessera::pjrt
