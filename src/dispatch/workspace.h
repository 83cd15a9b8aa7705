// Memory for lanes to work in. A run gives its workspace back to a small pool, so that the next one does not pay for
// fresh pages: on a short run those cost as much as the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

// Owns a block while it lives. Move-only; empty when the machine does not have that much.
class Workspace {
 public:
  static Workspace Take(int64_t bytes);

  Workspace() = default;
  Workspace(Workspace&& other) noexcept;
  Workspace& operator=(Workspace&& other) noexcept;
  ~Workspace();

  bool has_memory() const { return block_ != nullptr; }
  std::span<std::byte> bytes() const { return {block_, static_cast<size_t>(bytes_)}; }

 private:
  std::byte* block_ = nullptr;
  int64_t bytes_ = 0;     // asked for
  int64_t capacity_ = 0;  // there
};

}  // namespace tessera
