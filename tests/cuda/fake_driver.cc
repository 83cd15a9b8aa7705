#include "cuda/fake_driver.h"

#include <algorithm>
#include <cstdio>

namespace tessera::lanes::cuda {
namespace {

FakeDriver* fake = nullptr;  // the one there is
constexpr size_t kAlign = 256;

}  // namespace

struct FakeFunctions {
  template <class Handle>
  static Handle NewHandle() {
    fake->handles_.push_back(std::make_unique<int>(0));
    return reinterpret_cast<Handle>(fake->handles_.back().get());
  }
  static int DeviceOf(Context context) { return *reinterpret_cast<int*>(context); }

  static void Fill(Driver& t) {
    t.init = [](unsigned) { return fake->Enter("init"); };
    t.version = [](int* version) { return *version = 13000, fake->Enter("version"); };
    t.error_name = [](DriverResult, const char** text) { return *text = "CUDA_ERROR_FAKE", kDriverSuccess; };
    t.error_text = [](DriverResult, const char** text) { return *text = "as the test wants it", kDriverSuccess; };
    t.device_count = [](int* count) { return *count = fake->num_devices, fake->Enter("device_count"); };
    t.device_get = [](int* device, int ordinal) { return *device = ordinal, fake->Enter("device_get"); };
    t.device_name = [](char* name, int size, int) {
      std::snprintf(name, static_cast<size_t>(size), "%s", fake->name.c_str());
      return fake->Enter("device_name");
    };
    t.device_attribute = [](int* value, int attribute, int) {
      *value = attribute == kAttributeMajor ? fake->major : attribute == kAttributeSms ? 132 : 0;
      return fake->Enter("device_attribute");
    };
    t.primary_retain = [](Context* context, int device) {
      return *context = fake->context(device), fake->Enter("primary_retain");
    };
    t.primary_release = [](int) { return fake->Enter("primary_release"); };
    t.context_current = [](Context* context) { return *context = fake->current_, fake->Enter("context_current"); };
    t.context_push = [](Context context) {
      fake->stack_.push_back(fake->current_);
      fake->current_ = context;
      return fake->Enter("context_push");
    };
    t.context_pop = [](Context* context) {
      *context = fake->current_;
      fake->current_ = fake->stack_.back();
      fake->stack_.pop_back();
      return fake->Enter("context_pop");
    };
    t.context_device = [](int* device) { return *device = DeviceOf(fake->current_), fake->Enter("context_device"); };
    t.library_load = [](Library* library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
      return *library = NewHandle<Library>(), fake->Enter("library_load");
    };
    t.library_unload = [](Library) { return fake->Enter("library_unload"); };
    t.library_kernel = [](Kernel* kernel, Library, const char* name) {
      *kernel = NewHandle<Kernel>();
      fake->kernels_[*kernel] = name;
      return fake->Enter("library_kernel");
    };
    t.kernel_set = [](int, int, Kernel, int) { return fake->Enter("kernel_set"); };
    t.launch = [](const LaunchConfig* config, Kernel kernel, void** arguments, void**) {
      const DriverResult result = fake->Enter("launch");
      if (result != kDriverSuccess) return result;
      const auto is_within = [](unsigned blocks, unsigned most) { return blocks >= 1 && blocks <= most; };
      if (!is_within(config->grid_x, 0x7fffffff) || !is_within(config->grid_y, 65535) ||
          !is_within(config->grid_z, 65535)) {
        return DriverResult{1};
      }
      Launched launched{fake->kernels_.at(kernel), config->grid_x, config->block_x,
                        config->shared_bytes,      config->stream, arguments[0]};
      for (unsigned i = 0; i < config->num_attributes; ++i) {
        launched.is_beside |= config->attributes[i].id == kLaunchProgrammatic && config->attributes[i].value == 1;
      }
      if (fake->on_launch != nullptr) fake->on_launch(launched);
      launched.params = nullptr;
      fake->launches.push_back(launched);
      return result;
    };
    t.memory_alloc = [](DevicePointer* at, size_t bytes) {
      const DriverResult result = fake->Enter("memory_alloc");
      if (result != kDriverSuccess) return result;
      *at = reinterpret_cast<DevicePointer>(fake->Allocate(bytes, DeviceOf(fake->current_)));
      return result;
    };
    t.memory_free = [](DevicePointer at) {
      const auto it = fake->memory_.find(static_cast<uintptr_t>(at));
      if (it == fake->memory_.end()) return DriverResult{1};
      fake->live_bytes -= static_cast<int64_t>(it->second.bytes);
      fake->memory_.erase(it);
      return fake->Enter("memory_free");
    };
    t.host_alloc = [](void** at, size_t bytes, unsigned) {
      const DriverResult result = fake->Enter("host_alloc");
      if (result == kDriverSuccess) *at = ::operator new(bytes);
      return result;
    };
    t.host_free = [](void* at) { return ::operator delete(at), fake->Enter("host_free"); };
    t.copy_to_device = [](DevicePointer to, const void* from, size_t bytes, Stream) {
      const DriverResult result = fake->Enter("copy_to_device");
      if (result == kDriverSuccess) std::memcpy(reinterpret_cast<void*>(to), from, bytes);
      return result;
    };
    t.copy_to_host = [](void* to, DevicePointer from, size_t bytes, Stream) {
      const DriverResult result = fake->Enter("copy_to_host");
      if (result == kDriverSuccess) std::memcpy(to, reinterpret_cast<void*>(from), bytes);
      return result;
    };
    t.fill_words = [](DevicePointer at, unsigned word, size_t count, Stream) {
      std::fill_n(reinterpret_cast<uint32_t*>(at), count, word);
      return fake->Enter("fill_words");
    };
    t.pointer_attributes = [](unsigned count, int* attributes, void** values, DevicePointer at) {
      const DriverResult result = fake->Enter("pointer_attributes");
      if (result != kDriverSuccess) return result;
      auto it = fake->memory_.upper_bound(static_cast<uintptr_t>(at));
      const FakeDriver::Range* range = nullptr;
      if (it != fake->memory_.begin() && (--it, at < it->first + it->second.bytes)) range = &it->second;
      for (unsigned i = 0; i < count; ++i) {
        const uint64_t begin = range == nullptr ? 0 : it->first;
        const uint64_t size = range == nullptr ? 0 : range->bytes;
        const int ordinal = range == nullptr ? -2 : range->device;
        const unsigned type = range == nullptr ? 0 : kMemoryTypeDevice;
        if (attributes[i] == kPointerMemoryType) std::memcpy(values[i], &type, sizeof(type));
        if (attributes[i] == kPointerOrdinal) std::memcpy(values[i], &ordinal, sizeof(ordinal));
        if (attributes[i] == kPointerRangeBegin) std::memcpy(values[i], &begin, sizeof(begin));
        if (attributes[i] == kPointerRangeSize) std::memcpy(values[i], &size, sizeof(size));
      }
      return result;
    };
    t.stream_create = [](Stream* stream, unsigned) {
      return *stream = fake->MakeStream(DeviceOf(fake->current_)), fake->Enter("stream_create");
    };
    t.stream_destroy = [](Stream) { return fake->Enter("stream_destroy"); };
    t.stream_context = [](Stream stream, Context* context) {
      return *context = fake->context(fake->streams_.at(stream)), fake->Enter("stream_context");
    };
    t.stream_wait = [](Stream, Event, unsigned) { return fake->Enter("stream_wait"); };
    t.stream_finish = [](Stream) { return fake->Enter("stream_finish"); };
    t.stream_capturing = [](Stream, int* status) {
      return *status = fake->is_capturing ? 1 : 0, fake->Enter("stream_capturing");
    };
    t.capture_mode = [](int*) { return fake->Enter("capture_mode"); };
    t.event_create = [](Event* event, unsigned) { return *event = NewHandle<Event>(), fake->Enter("event_create"); };
    t.event_destroy = [](Event) { return fake->Enter("event_destroy"); };
    t.event_record = [](Event, Stream) { return fake->Enter("event_record"); };
    t.event_query = [](Event) {
      const DriverResult result = fake->Enter("event_query");
      return result == kDriverSuccess && !fake->is_event_done ? kDriverNotReady : result;
    };
    t.event_finish = [](Event) { return fake->Enter("event_finish"); };
    t.encode_tiled = [](void* map, int type, uint32_t rank, void* data, const uint64_t* sizes, const uint64_t* strides,
                        const uint32_t* box, const uint32_t*, int, int swizzle, int, int) {
      // What a test can read back: address, sizes, strides in bytes, box.
      uint64_t words[16] = {reinterpret_cast<uint64_t>(data),
                            sizes[1],
                            sizes[2],
                            sizes[3],
                            sizes[4],
                            strides[0],
                            strides[1],
                            strides[2],
                            strides[3],
                            box[1],
                            box[2],
                            static_cast<uint64_t>(type),
                            rank,
                            static_cast<uint64_t>(swizzle),
                            0,
                            0};
      std::memcpy(map, words, sizeof(words));
      return fake->Enter("encode_tiled");
    };
  }
};

FakeDriver::FakeDriver() {
  fake = this;
  FakeFunctions::Fill(table_);
}
FakeDriver::~FakeDriver() { fake = nullptr; }

DriverResult FakeDriver::Enter(const std::string& function) {
  ++calls[function];
  const auto it = failures_.find(function);
  if (it == failures_.end()) return kDriverSuccess;
  const DriverResult result = it->second.first;
  if (!it->second.second) failures_.erase(it);
  return result;
}

void FakeDriver::FailNext(const std::string& function, DriverResult result, bool is_forever) {
  failures_[function] = {result, is_forever};
}

Stream FakeDriver::MakeStream(int device) {
  const Stream stream = FakeFunctions::NewHandle<Stream>();
  streams_[stream] = device;
  return stream;
}

std::byte* FakeDriver::Allocate(size_t bytes, int device) {
  Range range{bytes, device, std::make_unique<std::byte[]>(bytes + kAlign)};
  const auto at = (reinterpret_cast<uintptr_t>(range.memory.get()) + kAlign - 1) / kAlign * kAlign;
  live_bytes += static_cast<int64_t>(bytes);
  memory_.emplace(at, std::move(range));
  return reinterpret_cast<std::byte*>(at);
}

bool FakeDriver::IsDevice(const void* data) const {
  auto it = memory_.upper_bound(reinterpret_cast<uintptr_t>(data));
  return it != memory_.begin() && (--it, reinterpret_cast<uintptr_t>(data) < it->first + it->second.bytes);
}

}  // namespace tessera::lanes::cuda
