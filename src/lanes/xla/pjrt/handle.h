// Owns one thing that a plugin handed out, and hands it back with the call made for it.
#pragma once

#include <utility>

#include "lanes/xla/pjrt/call.h"

namespace tessera::pjrt {

template <class T, class DestroyArgs, T* DestroyArgs::*kField>
class Handle {
 public:
  Handle() = default;
  Handle(const api::Table* table, T* raw) : table_(table), raw_(raw) {}
  Handle(Handle&& other) noexcept : table_(other.table_), raw_(std::exchange(other.raw_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() {
    if (raw_ == nullptr) return;
    DestroyArgs args;
    args.*kField = raw_;
    // Nobody is left to tell of a failure; the plugin's error is freed all the same.
    (void)Call(*table_, args);
  }

  T* get() const { return raw_; }
  const api::Table& table() const { return *table_; }
  explicit operator bool() const { return raw_ != nullptr; }

 private:
  const api::Table* table_ = nullptr;
  T* raw_ = nullptr;
};

}  // namespace tessera::pjrt
