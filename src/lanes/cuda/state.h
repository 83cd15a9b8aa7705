// What an engine keeps of GPUs: opened devices, and the plans that lie in their memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "lanes/cuda/device.h"
#include "lanes/cuda/image.h"

namespace tessera::lanes::cuda {

// A plan in device memory. Its upload may still be under way: calls wait for it on their stream.
class UploadedPlan {
 public:
  UploadedPlan(std::shared_ptr<Device> device, Block block, Block staging, const PlanImage& image);
  ~UploadedPlan();
  UploadedPlan(const UploadedPlan&) = delete;
  UploadedPlan& operator=(const UploadedPlan&) = delete;

  const PlanHeader* header() const { return reinterpret_cast<const PlanHeader*>(block_.device()); }
  int64_t tiles(KernelKind kind) const { return tiles_[static_cast<size_t>(kind)]; }
  int64_t bytes() const { return bytes_; }
  const std::array<ClassWork, kNumDirections>& work() const { return work_; }

  // Before a call's first launch, and after its last.
  Status Begin(Stream stream, bool is_capturing);
  Status End(Stream stream, bool is_capturing);

 private:
  friend class State;
  std::shared_ptr<Device> device_;
  std::array<ClassWork, kNumDirections> work_;
  std::array<int64_t, 3> tiles_;
  int64_t bytes_ = 0;
  std::atomic<bool> is_ready_ = false;
  std::mutex mutex_;
  Block block_;
  Block staging_;
  Event ready_ = nullptr;
};

// One binding's hold of an uploaded plan, handed on to what is bound in its place.
struct PlanUse {
  std::shared_ptr<UploadedPlan> plan;
};

class State {
 public:
  // Null: the machine's own driver, opened when first asked for.
  explicit State(const Driver* driver) : given_(driver) {}

  // Why there is no driver, or nothing.
  LoadedDriver driver() const { return given_ != nullptr ? LoadedDriver{given_, {}} : LoadDriver(); }
  Result<DeviceFacts> Facts(int64_t ordinal);
  Result<std::shared_ptr<Device>> Open(int64_t ordinal);

  // The plan there already, or copied now, without waiting for it. Plans are known by their fingerprint.
  Result<std::shared_ptr<UploadedPlan>> Upload(const std::shared_ptr<Device>& device, const Contract& contract,
                                               const PlanView& plan, const ImageNeeds& needs);
  // Writes another plan of the class over the one there, in the stream's order. Refused where others hold it too.
  Status Overwrite(const PlanUse& use, const Contract& contract, const PlanView& plan, const ImageNeeds& needs,
                   Stream stream);
  int64_t num_uploads() const { return num_uploads_; }

 private:
  struct Key {
    Context context;
    Hash128 fingerprint;
    std::array<int64_t, 5> form;  // passes and head counts, which a plan does not say whole
    bool operator<(const Key& other) const {
      return std::tie(context, fingerprint, form) < std::tie(other.context, other.fingerprint, other.form);
    }
  };

  const Driver* given_;
  std::mutex mutex_;
  std::map<int64_t, DeviceFacts> facts_;
  std::map<Context, std::shared_ptr<Device>> devices_;
  std::list<std::pair<Key, std::shared_ptr<UploadedPlan>>> recent_;  // newest first
  std::map<std::array<int64_t, 5>, int64_t> largest_;                // image of a shape, in bytes
  std::atomic<int64_t> num_uploads_ = 0;
};

}  // namespace tessera::lanes::cuda
