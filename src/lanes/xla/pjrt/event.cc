#include "lanes/xla/pjrt/event.h"

namespace tessera::pjrt {

Event& Event::operator=(Event&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  handle_ = std::move(other.handle_);
  on_drop_ = other.on_drop_;
  return *this;
}

void Event::Drop() {
  if (on_drop_ == OnDrop::kAwait) (void)Await();
}

Status Event::Await() const {
  if (!handle_) return {};
  api::EventAwaitArgs args{.event = handle_.get()};
  return Call(handle_.table(), args);
}

Result<bool> Event::IsReady() const {
  if (!handle_) return true;
  api::EventIsReadyArgs args{.event = handle_.get()};
  if (Status ok = Call(handle_.table(), args); !ok) return tl::unexpected(ok.error());
  return args.is_ready;
}

}  // namespace tessera::pjrt
