#include "lanes/cuda/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/math.h"
#include "base/try.h"

namespace tessera::lanes::cuda {
namespace {

constexpr int64_t kBlockUnit = 64 * 1024;
// Blocks in use by earlier work, from which on a further call waits for the oldest on the device instead of taking
// more.
constexpr int64_t kMostBusy = 4;
constexpr size_t kMostIdle = 64;

Status Done(const Driver& driver, DriverResult result, std::string_view doing) {
  if (result == kDriverSuccess) return {};
  return tl::unexpected(driver.ErrorOf(result, doing));
}

}  // namespace

ContextScope::ContextScope(const Driver& driver, Context context) : driver_(driver) {
  Context current = nullptr;
  if (driver.context_current(&current) == kDriverSuccess && current == context) return;
  is_pushed_ = driver.context_push(context) == kDriverSuccess;
}
ContextScope::~ContextScope() {
  Context popped = nullptr;
  if (is_pushed_) driver_.context_pop(&popped);
}

Block& Block::operator=(Block&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(pool_, other.pool_);
  std::swap(is_kept_, other.is_kept_);
  std::swap(has_tickets_, other.has_tickets_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(uses_, other.uses_);
  return *this;
}

Block::~Block() {
  if (owner_ != nullptr && address_ != 0) owner_->Give(std::move(*this));
}

DriverResult Block::Record(Stream stream) {
  for (auto& [used, event] : uses_.events) {
    if (used == stream) return owner_->driver_.event_record(event, stream);
  }
  Result<Event> event = owner_->MakeEvent();
  if (!event) return kDriverOutOfMemory;
  uses_.events.emplace_back(stream, *event);
  return owner_->driver_.event_record(*event, stream);
}

DriverResult Block::Wait(Stream stream) const {
  for (const auto& [used, event] : uses_.events) {
    const DriverResult result = owner_->driver_.stream_wait(stream, event, 0);
    if (result != kDriverSuccess) return result;
  }
  return kDriverSuccess;
}

Result<DeviceFacts> ReadFacts(const Driver& driver, int64_t ordinal) {
  TESSERA_TRY(Done(driver, driver.init(0), "starting the driver"));
  int count = 0;
  TESSERA_TRY(Done(driver, driver.device_count(&count), "counting GPUs"));
  if (ordinal < 0 || ordinal >= count) {
    return Fail(ErrorCode::kDeviceFailed, fmt::format("GPU {} was asked for, and the driver has {}", ordinal, count));
  }
  DeviceFacts facts;
  facts.ordinal = ordinal;
  TESSERA_TRY(Done(driver, driver.device_get(&facts.device, static_cast<int>(ordinal)), "finding the GPU"));
  std::array<char, 256> name{};
  TESSERA_TRY(
      Done(driver, driver.device_name(name.data(), static_cast<int>(name.size()) - 1, facts.device), "its name"));
  facts.name = name.data();
  const auto read = [&](int& value, DeviceAttribute attribute) {
    return Done(driver, driver.device_attribute(&value, attribute, facts.device), "reading the GPU's attributes");
  };
  TESSERA_TRY(read(facts.major, kAttributeMajor));
  TESSERA_TRY(read(facts.minor, kAttributeMinor));
  TESSERA_TRY(read(facts.num_sms, kAttributeSms));
  int version = 0;
  TESSERA_TRY(Done(driver, driver.version(&version), "reading the driver's version"));
  facts.driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  return facts;
}

Result<std::shared_ptr<Device>> Device::Open(const Driver& driver, const DeviceFacts& facts, Context context,
                                             bool is_primary) {
  std::shared_ptr<Device> device(new Device(driver, facts, context, is_primary));
  const ContextScope scope(driver, context);
  TESSERA_TRY(Done(driver, driver.stream_create(&device->upload_, kStreamNonBlocking), "making a stream"));
  return device;
}

Device::~Device() {
  const ContextScope scope(driver_, context_);
  is_closing_ = true;
  for (std::vector<Block>& blocks : idle_) {
    for (Block& block : blocks) Free(block);
    blocks.clear();
  }
  for (const auto& [name, loaded] : kernels_) driver_.library_unload(loaded.first);
  if (upload_ != nullptr) driver_.stream_destroy(upload_);
  if (is_primary_) driver_.primary_release(facts_.device);
}

Result<Kernel> Device::Load(const KernelRow& row) {
  const std::lock_guard lock(mutex_);
  if (const auto it = kernels_.find(row.name); it != kernels_.end()) return it->second.second;
  const std::span<const Cubin> cubins = EmbeddedCubins();
  const auto cubin = std::find_if(cubins.begin(), cubins.end(), [&](const Cubin& c) { return c.name == row.name; });
  if (cubin == cubins.end()) return Fail(ErrorCode::kDeviceFailed, fmt::format("this build has no {}", row.name));
  Library library = nullptr;
  Kernel kernel = nullptr;
  TESSERA_TRY(Done(driver_,
                   driver_.library_load(&library, cubin->bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                   fmt::format("loading {}", row.name)));
  Status ok =
      Done(driver_, driver_.library_kernel(&kernel, library, std::string(row.name).c_str()), "finding a kernel");
  if (const int32_t shared = SharedBytesOf(row); ok && shared > 0) {
    ok = Done(driver_, driver_.kernel_set(kKernelMaxShared, shared, kernel, facts_.device), "asking for shared memory");
  }
  if (!ok) {
    driver_.library_unload(library);
    return tl::unexpected(std::move(ok.error()));
  }
  kernels_.emplace(row.name, std::pair(library, kernel));
  return kernel;
}

Result<Event> Device::MakeEvent() {
  Event event = nullptr;
  TESSERA_TRY(Done(driver_, driver_.event_create(&event, kEventWithoutTiming), "making an event"));
  return event;
}

bool Device::IsFree(Block& block) const {
  auto& events = block.uses_.events;
  return std::all_of(events.begin(), events.end(),
                     [&](const auto& use) { return driver_.event_query(use.second) == kDriverSuccess; });
}

Result<Block> Device::Take(int64_t bytes, Stream stream, bool is_capturing) {
  Block block = TESSERA_TRY(TakeFrom(Pool::kCalls, bytes, stream, is_capturing));
  block.has_tickets_ = false;
  return block;
}
Result<Block> Device::TakeWorkspace(int64_t bytes, Stream stream, bool is_capturing) {
  return TakeFrom(Pool::kCalls, bytes, stream, is_capturing);
}
Result<Block> Device::TakeHost(int64_t bytes, Stream stream) { return TakeFrom(Pool::kHost, bytes, stream, false); }
Result<Block> Device::TakeForPlan(int64_t bytes, Stream stream) { return TakeFrom(Pool::kPlans, bytes, stream, false); }

void Device::Reserve(int64_t bytes, int64_t count) {
  const int64_t want = RoundUp(std::max<int64_t>(bytes, 1), kBlockUnit);
  for (const Pool pool : {Pool::kPlans, Pool::kHost}) {
    for (int64_t i = 0; i < count; ++i) {
      Result<Block> block = Allocate(pool, want, false);
      if (!block) return;       // who needs one will say so
      block->owner_ = nullptr;  // idle: its destructor does nothing
      const std::lock_guard lock(mutex_);
      IdleOf(pool).push_back(std::move(*block));
    }
  }
}

// Of those that are large enough, and no more than four times as large: one of this stream, else one that is free, else
// with many busy ones the oldest, for which the stream then waits.
Result<Block> Device::TakeFrom(Pool pool, int64_t bytes, Stream stream, bool is_capturing) {
  std::vector<Block>& idle = IdleOf(pool);
  const bool is_host = pool == Pool::kHost;
  const int64_t want = RoundUp(std::max<int64_t>(bytes, 1), kBlockUnit);
  if (!is_capturing) {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const Block& block) { return block.bytes_ >= want && block.bytes_ / 4 <= want; };
    auto best = idle.end();
    int64_t busy = 0;
    for (auto it = idle.begin(); it != idle.end(); ++it) {
      if (!fits(*it)) continue;
      const auto& events = it->uses_.events;
      // The host writes its own memory at once, whatever the stream's order.
      const bool is_ours = !is_host && events.size() == 1 && events[0].first == stream;
      if (is_ours || IsFree(*it)) {
        best = it;
        break;
      }
      ++busy;
    }
    if (best == idle.end() && busy >= kMostBusy && !is_host) best = std::find_if(idle.begin(), idle.end(), fits);
    if (best != idle.end()) {
      Block block = std::move(*best);
      idle.erase(best);
      for (const auto& [used, event] : block.uses_.events) {
        // Also of the same stream: a handle may have been destroyed and given out again.
        if (!is_host) TESSERA_TRY(Done(driver_, driver_.stream_wait(stream, event, 0), "waiting for memory"));
      }
      block.owner_ = this;
      return block;
    }
  }
  return Allocate(pool, want, is_capturing);
}

Result<Block> Device::Allocate(Pool pool, int64_t bytes, bool is_capturing) {
  const bool is_host = pool == Pool::kHost;
  Block block;
  block.pool_ = pool;
  block.bytes_ = bytes;
  // An allocation is no part of what is captured.
  int mode = kCaptureRelaxed;
  if (is_capturing) driver_.capture_mode(&mode);
  void* host = nullptr;
  const auto size = static_cast<size_t>(bytes);
  const DriverResult result =
      is_host ? driver_.host_alloc(&host, size, 0) : driver_.memory_alloc(&block.address_, size);
  if (is_capturing) driver_.capture_mode(&mode);
  if (is_host) block.address_ = reinterpret_cast<DevicePointer>(host);
  TESSERA_TRY(Done(driver_, result, fmt::format("taking {} bytes of {} memory", bytes, is_host ? "host" : "device")));
  block.owner_ = this;
  return block;
}

void Device::Free(Block& block) {
  for (const auto& [used, event] : block.uses_.events) driver_.event_destroy(event);
  block.uses_.events.clear();
  // The driver waits for what still uses it.
  if (block.pool_ == Pool::kHost) {
    driver_.host_free(block.host());
  } else {
    driver_.memory_free(block.address_);
  }
  block.address_ = 0;
  block.owner_ = nullptr;
}

void Device::Give(Block&& block) {
  Block taken = std::move(block);
  if (taken.is_kept_ || is_closing_) {
    const ContextScope scope(driver_, context_);
    Free(taken);
    return;
  }
  taken.owner_ = nullptr;  // idle: its destructor does nothing
  Block superfluous;
  {
    const std::lock_guard lock(mutex_);
    std::vector<Block>& idle = IdleOf(taken.pool_);
    idle.push_back(std::move(taken));
    if (idle.size() > kMostIdle) {
      superfluous = std::move(idle.front());
      idle.erase(idle.begin());
    }
  }
  if (superfluous.address_ != 0) {
    const ContextScope scope(driver_, context_);
    Free(superfluous);
  }
}

}  // namespace tessera::lanes::cuda
