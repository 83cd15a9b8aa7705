// One GPU in one context: its kernels, and memory that calls and plans take turns with. Whoever uses memory says after
// which event it is free, so that nothing here ever waits for the device.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lanes/cuda/driver.h"
#include "lanes/cuda/kernels.h"
#include "tessera/error.h"

namespace tessera::lanes::cuda {

// Makes a context the thread's own while it lives.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool is_pushed_ = false;
};

// What uses are still under way, one event for each stream.
struct Uses {
  std::vector<std::pair<Stream, Event>> events;
};

struct DeviceFacts {
  std::string name;  // "NVIDIA H200"
  int64_t ordinal = 0;
  int device = 0;
  int major = 0;
  int minor = 0;
  int num_sms = 0;
  std::string driver;  // "13.0"
};

// What a block is for. Blocks are given again for the same only.
enum class Pool : size_t { kCalls = 0, kPlans = 1, kHost = 2 };
inline constexpr size_t kNumPools = 3;

class Device;
// Memory of the device, or of the host that it copies from. Goes back to its Device, which outlives it.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept;
  ~Block();

  DevicePointer device() const { return address_; }
  void* host() const { return reinterpret_cast<void*>(address_); }
  int64_t bytes() const { return bytes_; }
  // The work on this stream so far uses it.
  DriverResult Record(Stream stream);
  // What is done on this stream from now on comes after those uses.
  DriverResult Wait(Stream stream) const;
  // A graph that was captured uses it whenever it is replayed: it is not given to others any more.
  void Keep() { is_kept_ = true; }
  // Whether it begins with tickets that are zero: the last to write it was a kernel, and a kernel leaves them so.
  bool has_tickets() const { return has_tickets_; }
  void SetTickets() { has_tickets_ = true; }

 private:
  friend class Device;
  Device* owner_ = nullptr;
  Pool pool_ = Pool::kCalls;
  bool is_kept_ = false;
  bool has_tickets_ = false;
  DevicePointer address_ = 0;
  int64_t bytes_ = 0;
  Uses uses_;
};

class Device {
 public:
  // The caller's current context where it is one of that device, else the device's primary one.
  static Result<std::shared_ptr<Device>> Open(const Driver& driver, const DeviceFacts& facts, Context context,
                                              bool is_primary);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  const DeviceFacts& facts() const { return facts_; }
  Context context() const { return context_; }
  Stream upload_stream() const { return upload_; }

  // Ready to be launched; loaded the first time.
  Result<Kernel> Load(const KernelRow& row);
  // At least that much, free for work on this stream. In a capture no other call's block is taken.
  Result<Block> Take(int64_t bytes, Stream stream, bool is_capturing);
  Result<Block> TakeForPlan(int64_t bytes, Stream stream);
  // The same for a call's workspace: one that was a workspace before still has its tickets.
  Result<Block> TakeWorkspace(int64_t bytes, Stream stream, bool is_capturing);
  Result<Block> TakeHost(int64_t bytes, Stream stream);
  // Takes that many blocks for plans at once, and as many of the host, for those who ask later; fewer where there is no
  // more.
  void Reserve(int64_t bytes, int64_t count);

 private:
  friend class Block;
  Result<Event> MakeEvent();
  Device(const Driver& driver, DeviceFacts facts, Context context, bool is_primary)
      : driver_(driver), facts_(std::move(facts)), context_(context), is_primary_(is_primary) {}
  Result<Block> TakeFrom(Pool pool, int64_t bytes, Stream stream, bool is_capturing);
  Result<Block> Allocate(Pool pool, int64_t bytes, bool is_capturing);
  void Give(Block&& block);
  void Free(Block& block);
  bool IsFree(Block& block) const;
  std::vector<Block>& IdleOf(Pool pool) { return idle_[static_cast<size_t>(pool)]; }

  const Driver& driver_;
  const DeviceFacts facts_;
  const Context context_;
  const bool is_primary_;
  Stream upload_ = nullptr;
  std::mutex mutex_;
  std::map<std::string_view, std::pair<Library, Kernel>> kernels_;
  std::array<std::vector<Block>, kNumPools> idle_;  // oldest first
  bool is_closing_ = false;
};

// What the driver says of a GPU; a decision's reason where it has none of that number.
Result<DeviceFacts> ReadFacts(const Driver& driver, int64_t ordinal);

}  // namespace tessera::lanes::cuda
