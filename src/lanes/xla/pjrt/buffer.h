// An array in a device's memory. The type is asked of the plugin when the buffer is made, so that what we check later
// is what the device holds and not what somebody meant to put there.
#pragma once

#include <cstddef>
#include <span>

#include "lanes/xla/pjrt/api_buffer.h"
#include "lanes/xla/pjrt/event.h"
#include "lanes/xla/pjrt/handle.h"
#include "lanes/xla/pjrt/tensor_type.h"

namespace tessera::pjrt {

class Buffer {
 public:
  // Takes the raw buffer over, also when it fails. `device` is an index into Client::devices().
  static Result<Buffer> Adopt(const api::Table& table, api::Buffer* raw, int64_t device);

  Buffer() = default;

  const TensorType& type() const { return type_; }
  int64_t device() const { return device_; }
  // For Executable. Null for a buffer that was moved from.
  api::Buffer* raw() const { return handle_.get(); }

  // Dense and row-major whatever the device's layout. Waits for the program that makes the array.
  Status Download(std::span<std::byte> into) const;
  // `into` must stay until the event is done; an event that is dropped waits.
  Result<Event> DownloadAsync(std::span<std::byte> into) const;
  // Blocks until the array is there; the error of the program that should have made it, if it failed.
  Status Await() const;
  // Where a CPU's buffer lies, dense and row-major, once Await returned; of other devices, an address of theirs.
  Result<const std::byte*> Address() const;
  // True once a run has taken it over (donation): it holds nothing any more.
  Result<bool> IsDonated() const;

 private:
  Handle<api::Buffer, api::BufferDestroyArgs, &api::BufferDestroyArgs::buffer> handle_;
  TensorType type_;
  int64_t device_ = 0;
};

// A buffer that may be the caller's memory itself. Members go in this order: first the buffer, and then its end waits
// until the plugin has let go of the memory, whatever runs still use it.
struct LentBuffer {
  LentBuffer(Event released_event, Buffer lent) : released(std::move(released_event)), buffer(std::move(lent)) {}
  LentBuffer(LentBuffer&&) = default;
  LentBuffer& operator=(LentBuffer&&) = delete;  // it would wait for a buffer that is still there

  Event released;
  Buffer buffer;
};

}  // namespace tessera::pjrt
