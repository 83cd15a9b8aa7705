#include "lanes/xla/pjrt/buffer.h"

#include <fmt/format.h>

namespace tessera::pjrt {
namespace {

constexpr const char* kEmpty = "the buffer is empty: it was moved from, or never filled";

}  // namespace

Result<Buffer> Buffer::Adopt(const api::Table& table, api::Buffer* raw, int64_t device) {
  if (raw == nullptr) return Fail(ErrorCode::kPluginFailed, "the plugin gave no buffer", "buffer");
  Buffer buffer;
  buffer.handle_ = {&table, raw};
  buffer.device_ = device;
  api::BufferElementTypeArgs type{.buffer = raw};
  if (Status ok = Call(table, type); !ok) return tl::unexpected(ok.error());
  const std::optional<ElementType> element = ElementTypeOf(type.type);
  if (!element) {
    return Fail(ErrorCode::kProgramMismatch,
                fmt::format("the plugin made a buffer of element type {}, which is not one of ours", type.type),
                api::BufferElementTypeArgs::kName);
  }
  api::BufferDimensionsArgs dims{.buffer = raw};
  if (Status ok = Call(table, dims); !ok) return tl::unexpected(ok.error());
  buffer.type_ = {*element, std::vector<int64_t>(dims.dims, dims.dims + dims.num_dims)};
  if (Status ok = CheckTensorType(buffer.type_, api::BufferDimensionsArgs::kName); !ok) {
    return tl::unexpected(ok.error());
  }
  return buffer;
}

Result<Event> Buffer::DownloadAsync(std::span<std::byte> into) const {
  if (!handle_) return Fail(ErrorCode::kProgramMismatch, kEmpty, "download");
  const Result<bool> donated = IsDonated();
  if (!donated) return tl::unexpected(donated.error());
  if (*donated) {
    return Fail(ErrorCode::kProgramMismatch,
                fmt::format("the buffer {} was donated to a run and holds nothing any more", ToText(type_)),
                "download");
  }
  if (static_cast<int64_t>(into.size()) != type_.bytes()) {
    return Fail(ErrorCode::kProgramMismatch,
                fmt::format("{} has {} bytes; {} were given to hold them", ToText(type_), type_.bytes(), into.size()),
                "download");
  }
  if (into.empty()) return Event();
  // Without a layout the plugin would give its own, which is not row-major on every device.
  std::vector<int64_t> minor_to_major(type_.dims.size());
  for (size_t i = 0; i < minor_to_major.size(); ++i) {
    minor_to_major[i] = static_cast<int64_t>(minor_to_major.size() - 1 - i);
  }
  api::MemoryLayout layout;
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = minor_to_major.size();
  api::BufferToHostArgs args{.src = handle_.get(), .host_layout = &layout, .dst = into.data(), .dst_size = into.size()};
  if (Status ok = Call(handle_.table(), args); !ok) return tl::unexpected(ok.error());
  return Event(handle_.table(), args.event, Event::OnDrop::kAwait);
}

Status Buffer::Download(std::span<std::byte> into) const {
  const Result<Event> done = DownloadAsync(into);
  if (!done) return tl::unexpected(done.error());
  return done->Await();
}

Status Buffer::Await() const {
  if (!handle_) return Fail(ErrorCode::kProgramMismatch, kEmpty, "await");
  api::BufferReadyEventArgs args{.buffer = handle_.get()};
  if (Status ok = Call(handle_.table(), args); !ok) return ok;
  return Event(handle_.table(), args.event).Await();
}

Result<const std::byte*> Buffer::Address() const {
  if (!handle_) return Fail(ErrorCode::kProgramMismatch, kEmpty, "buffer");
  api::BufferUnsafePointerArgs args{.buffer = handle_.get()};
  if (Status ok = Call(handle_.table(), args); !ok) return tl::unexpected(ok.error());
  return reinterpret_cast<const std::byte*>(args.buffer_pointer);
}

Result<bool> Buffer::IsDonated() const {
  if (!handle_) return Fail(ErrorCode::kProgramMismatch, kEmpty, "buffer");
  api::BufferIsDeletedArgs args{.buffer = handle_.get()};
  if (Status ok = Call(handle_.table(), args); !ok) return tl::unexpected(ok.error());
  return args.is_deleted;
}

}  // namespace tessera::pjrt
