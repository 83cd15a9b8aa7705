#include "lanes/cuda/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <vector>

#include "base/try.h"

namespace tessera::lanes::cuda {
namespace {

// Plans kept on a device when nobody is bound to them: so many, of so many bytes together; one of any size.
constexpr size_t kKeptPlans = 8;
constexpr int64_t kMostKept = int64_t{32} << 20;
// Rooms for plans that are taken with the first of a shape: for those kept, and as many again for plans that somebody
// is bound to or whose work is under way.
constexpr int64_t RoomsOf(int64_t bytes) {
  return std::min(2 * static_cast<int64_t>(kKeptPlans), 2 * kMostKept / bytes);
}

Status Done(const Driver& driver, DriverResult result, std::string_view doing) {
  if (result == kDriverSuccess) return {};
  return tl::unexpected(driver.ErrorOf(result, doing));
}

}  // namespace

UploadedPlan::UploadedPlan(std::shared_ptr<Device> device, Block block, Block staging, const PlanImage& image)
    : device_(std::move(device)),
      work_(image.work),
      tiles_(image.tiles),
      bytes_(static_cast<int64_t>(image.bytes.size())),
      block_(std::move(block)),
      staging_(std::move(staging)) {}

UploadedPlan::~UploadedPlan() {
  const ContextScope scope(device_->driver(), device_->context());
  if (ready_ != nullptr) device_->driver().event_destroy(ready_);
  // The blocks go back to the device while it is there.
  staging_ = {};
  block_ = {};
}

Status UploadedPlan::Begin(Stream stream, bool is_capturing) {
  if (is_ready_.load(std::memory_order_acquire)) return {};
  const Driver& driver = device_->driver();
  if (!is_capturing && driver.event_query(ready_) == kDriverSuccess) {
    const std::lock_guard lock(mutex_);
    staging_ = {};
    is_ready_.store(true, std::memory_order_release);
    return {};
  }
  return Done(driver, driver.stream_wait(stream, ready_, is_capturing ? kWaitExternal : 0), "waiting for the plan");
}

Status UploadedPlan::End(Stream stream, bool is_capturing) {
  const std::lock_guard lock(mutex_);
  if (is_capturing) {
    block_.Keep();
    return {};
  }
  return Done(device_->driver(), block_.Record(stream), "recording an event");
}

Result<DeviceFacts> State::Facts(int64_t ordinal) {
  const LoadedDriver loaded = driver();
  if (loaded.driver == nullptr) return Fail(ErrorCode::kDeviceFailed, loaded.problem, "cuda");
  const std::lock_guard lock(mutex_);
  if (const auto it = facts_.find(ordinal); it != facts_.end()) return it->second;
  DeviceFacts facts = TESSERA_TRY(ReadFacts(*loaded.driver, ordinal));
  return facts_.emplace(ordinal, std::move(facts)).first->second;
}

Result<std::shared_ptr<Device>> State::Open(int64_t ordinal) {
  const DeviceFacts facts = TESSERA_TRY(Facts(ordinal));
  const Driver& driver = *this->driver().driver;
  // The caller's context, where it is one of that device.
  Context context = nullptr;
  int current = -1;
  if (driver.context_current(&context) != kDriverSuccess || context == nullptr ||
      driver.context_device(&current) != kDriverSuccess || current != facts.device) {
    context = nullptr;
  }
  const std::lock_guard lock(mutex_);
  if (context != nullptr) {
    if (const auto it = devices_.find(context); it != devices_.end()) return it->second;
  }
  // Retained also when it is the current one: it must last as long as what is kept in it.
  Context primary = nullptr;
  TESSERA_TRY(Done(driver, driver.primary_retain(&primary, facts.device), "opening the GPU's context"));
  const bool is_primary = context == nullptr || context == primary;
  if (is_primary) context = primary;
  const auto it = devices_.find(context);
  if (it != devices_.end() || !is_primary) driver.primary_release(facts.device);
  if (it != devices_.end()) return it->second;
  std::shared_ptr<Device> device = TESSERA_TRY(Device::Open(driver, facts, context, is_primary));
  return devices_.emplace(context, std::move(device)).first->second;
}

Status State::Overwrite(const PlanUse& use, const Contract& contract, const PlanView& plan, const ImageNeeds& needs,
                        Stream stream) {
  UploadedPlan& there = *use.plan;
  {
    // From here on nobody finds it by the fingerprint it had.
    const std::lock_guard lock(mutex_);
    recent_.remove_if([&](const auto& entry) { return entry.second.get() == &there; });
    if (use.plan.use_count() > 1) {
      return Fail(ErrorCode::kBadArgument,
                  "something else is bound to the earlier plan, and shares what lies on the GPU", "cuda");
    }
  }
  const PlanImage image = TESSERA_TRY(MakeImage(contract, plan, needs));
  const auto size = static_cast<int64_t>(image.bytes.size());
  if (image.work != there.work_) {
    return Fail(ErrorCode::kBadArgument, "the plan has other rows of tiles than the earlier one", "cuda");
  }
  if (size > there.block_.bytes()) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("the plan takes {} bytes on the GPU, and the earlier one has room for {}", size,
                            there.block_.bytes()),
                "cuda");
  }
  const Driver& driver = there.device_->driver();
  const ContextScope scope(driver, there.device_->context());
  Block staging = TESSERA_TRY(there.device_->TakeHost(there.block_.bytes(), stream));
  std::memcpy(staging.host(), image.bytes.data(), image.bytes.size());
  const std::lock_guard lock(there.mutex_);
  TESSERA_TRY(Done(driver, there.block_.Wait(stream), "waiting for the plan's readers"));
  TESSERA_TRY(Done(driver, driver.copy_to_device(there.block_.device(), staging.host(), image.bytes.size(), stream),
                   "copying the plan to the GPU"));
  there.is_ready_.store(false, std::memory_order_release);
  TESSERA_TRY(Done(driver, driver.event_record(there.ready_, stream), "recording an event"));
  TESSERA_TRY(Done(driver, there.block_.Record(stream), "recording an event"));
  TESSERA_TRY(Done(driver, staging.Record(stream), "recording an event"));
  there.staging_ = std::move(staging);
  there.tiles_ = image.tiles;
  there.bytes_ = size;
  ++num_uploads_;
  return {};
}

Result<std::shared_ptr<UploadedPlan>> State::Upload(const std::shared_ptr<Device>& device, const Contract& contract,
                                                    const PlanView& plan, const ImageNeeds& needs) {
  const Shape& s = contract.shape;
  const Key key{device->context(),
                plan.fingerprint,
                {needs.forward ? 1 : 0, needs.backward ? 1 : 0, s.num_kv_heads, s.dim_qk, s.dim_v}};
  {
    const std::lock_guard lock(mutex_);
    const auto it = std::find_if(recent_.begin(), recent_.end(),
                                 [&](const auto& entry) { return !(entry.first < key) && !(key < entry.first); });
    if (it != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, it);
      return it->second;
    }
  }
  const PlanImage image = TESSERA_TRY(MakeImage(contract, plan, needs));
  const Driver& driver = device->driver();
  const ContextScope scope(driver, device->context());
  const Stream stream = device->upload_stream();
  // Powers of two with half as much again to spare, and as much as the largest of this shape had: the images of its
  // batches find each other's room, also where one of them is a little larger than the first.
  bool is_larger = false;
  auto bytes = static_cast<int64_t>(std::bit_ceil(image.bytes.size() + image.bytes.size() / 2));
  {
    const std::lock_guard lock(mutex_);
    int64_t& most = largest_[{s.batch, s.num_q_heads, s.num_kv_heads, s.q_len, s.kv_len}];
    is_larger = bytes > most;
    bytes = most = std::max(most, bytes);
  }
  Block block = TESSERA_TRY(device->TakeForPlan(bytes, stream));
  Block staging = TESSERA_TRY(device->TakeHost(bytes, stream));
  if (is_larger) device->Reserve(bytes, RoomsOf(bytes) - 1);
  std::memcpy(staging.host(), image.bytes.data(), image.bytes.size());
  auto uploaded = std::make_shared<UploadedPlan>(device, std::move(block), std::move(staging), image);
  TESSERA_TRY(Done(driver, driver.event_create(&uploaded->ready_, kEventWithoutTiming), "making an event"));
  TESSERA_TRY(Done(
      driver, driver.copy_to_device(uploaded->block_.device(), uploaded->staging_.host(), image.bytes.size(), stream),
      "copying the plan to the GPU"));
  TESSERA_TRY(Done(driver, driver.event_record(uploaded->ready_, stream), "recording an event"));
  TESSERA_TRY(Done(driver, uploaded->block_.Record(stream), "recording an event"));
  TESSERA_TRY(Done(driver, uploaded->staging_.Record(stream), "recording an event"));
  ++num_uploads_;
  std::vector<std::shared_ptr<UploadedPlan>> oldest;  // given up when the lock is
  const std::lock_guard lock(mutex_);
  recent_.emplace_front(key, uploaded);
  int64_t kept = 0;
  for (const auto& entry : recent_) kept += entry.second->block_.bytes();
  while (recent_.size() > 1 && (recent_.size() > kKeptPlans || kept > kMostKept)) {
    oldest.push_back(std::move(recent_.back().second));
    kept -= oldest.back()->block_.bytes();
    recent_.pop_back();
  }
  return uploaded;
}

}  // namespace tessera::lanes::cuda
