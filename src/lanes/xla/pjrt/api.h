// The part of the PJRT C interface that this client calls, in our own words: the argument structs, the slots of the
// function table, nothing else. Field names, order and types are those of the interface; a test compares every offset
// with the header that a plugin's wheel ships.
//
// A plugin refuses a call whose struct is smaller than its own and ignores what is beyond it. New fields are added at
// the end and mean "as before" when zero, so each struct ends with zeroed spare words: a plugin newer than these
// declarations still accepts them. Structs that stand in arrays or inside others have no spare words.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::pjrt::api {

inline constexpr size_t kSpareWords = 8;

// What a plugin hands out. Only pointers to them exist here.
struct Error;
struct Event;
struct Client;
struct Device;
struct DeviceDescription;
struct Memory;
struct Buffer;
struct Executable;
struct LoadedExecutable;
struct SerializedExecutable;
struct Topology;

struct Version {
  size_t struct_size;
  void* extension_start;
  int major_version;
  int minor_version;
};

// The function table that GetPjrtApi gives. Slots beyond struct_size do not exist.
struct Table {
  size_t struct_size;
  void* extension_start;
  Version pjrt_api_version;
  void* slots[138];  // as many as PJRT 0.114 has
};
static_assert(offsetof(Table, slots) == 40 && sizeof(Table) == 1144);

struct ErrorDestroyArgs {
  static constexpr int kSlot = 0;
  static constexpr const char* kName = "PJRT_Error_Destroy";
  size_t struct_size = sizeof(ErrorDestroyArgs);
  void* extension_start = nullptr;
  Error* error = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct ErrorMessageArgs {
  static constexpr int kSlot = 1;
  static constexpr const char* kName = "PJRT_Error_Message";
  size_t struct_size = sizeof(ErrorMessageArgs);
  void* extension_start = nullptr;
  const Error* error = nullptr;
  const char* message = nullptr;
  size_t message_size = 0;
  uint64_t spare[kSpareWords] = {};
};

struct ErrorGetCodeArgs {
  static constexpr int kSlot = 2;
  static constexpr const char* kName = "PJRT_Error_GetCode";
  size_t struct_size = sizeof(ErrorGetCodeArgs);
  void* extension_start = nullptr;
  const Error* error = nullptr;
  int32_t code = 0;
  uint64_t spare[kSpareWords] = {};
};

struct PluginInitializeArgs {
  static constexpr int kSlot = 3;
  static constexpr const char* kName = "PJRT_Plugin_Initialize";
  size_t struct_size = sizeof(PluginInitializeArgs);
  void* extension_start = nullptr;
  uint64_t spare[kSpareWords] = {};
};

enum NamedValueType : int32_t { kString = 0, kInt64 = 1, kInt64List = 2, kFloat = 3, kBool = 4 };

struct NamedValue {
  size_t struct_size = sizeof(NamedValue);
  void* extension_start = nullptr;
  const char* name = nullptr;
  size_t name_size = 0;
  NamedValueType type = kString;
  union {
    const char* string_value = nullptr;
    int64_t int64_value;
    const int64_t* int64_array_value;
    float float_value;
    bool bool_value;
  };
  size_t value_size = 0;  // characters of a string, elements of a list, else 1
};
static_assert(sizeof(NamedValue) == 56);

struct PluginAttributesArgs {
  static constexpr int kSlot = 4;
  static constexpr const char* kName = "PJRT_Plugin_Attributes";
  size_t struct_size = sizeof(PluginAttributesArgs);
  void* extension_start = nullptr;
  const NamedValue* attributes = nullptr;
  size_t num_attributes = 0;
  uint64_t spare[kSpareWords] = {};
};

struct EventDestroyArgs {
  static constexpr int kSlot = 5;
  static constexpr const char* kName = "PJRT_Event_Destroy";
  size_t struct_size = sizeof(EventDestroyArgs);
  void* extension_start = nullptr;
  Event* event = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct EventIsReadyArgs {
  static constexpr int kSlot = 6;
  static constexpr const char* kName = "PJRT_Event_IsReady";
  size_t struct_size = sizeof(EventIsReadyArgs);
  void* extension_start = nullptr;
  Event* event = nullptr;
  bool is_ready = false;
  uint64_t spare[kSpareWords] = {};
};

struct EventAwaitArgs {
  static constexpr int kSlot = 8;
  static constexpr const char* kName = "PJRT_Event_Await";
  size_t struct_size = sizeof(EventAwaitArgs);
  void* extension_start = nullptr;
  Event* event = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct ClientCreateArgs {
  static constexpr int kSlot = 10;
  static constexpr const char* kName = "PJRT_Client_Create";
  size_t struct_size = sizeof(ClientCreateArgs);
  void* extension_start = nullptr;
  const NamedValue* create_options = nullptr;
  size_t num_options = 0;
  void* kv_get_callback = nullptr;  // these are for programs of several hosts
  void* kv_get_user_arg = nullptr;
  void* kv_put_callback = nullptr;
  void* kv_put_user_arg = nullptr;
  Client* client = nullptr;
  void* kv_try_get_callback = nullptr;
  void* kv_try_get_user_arg = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct ClientDestroyArgs {
  static constexpr int kSlot = 11;
  static constexpr const char* kName = "PJRT_Client_Destroy";
  size_t struct_size = sizeof(ClientDestroyArgs);
  void* extension_start = nullptr;
  Client* client = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct ClientPlatformNameArgs {
  static constexpr int kSlot = 12;
  static constexpr const char* kName = "PJRT_Client_PlatformName";
  size_t struct_size = sizeof(ClientPlatformNameArgs);
  void* extension_start = nullptr;
  Client* client = nullptr;
  const char* platform_name = nullptr;
  size_t platform_name_size = 0;
  uint64_t spare[kSpareWords] = {};
};

struct ClientPlatformVersionArgs {
  static constexpr int kSlot = 14;
  static constexpr const char* kName = "PJRT_Client_PlatformVersion";
  size_t struct_size = sizeof(ClientPlatformVersionArgs);
  void* extension_start = nullptr;
  Client* client = nullptr;
  const char* platform_version = nullptr;
  size_t platform_version_size = 0;
  uint64_t spare[kSpareWords] = {};
};

struct ClientAddressableDevicesArgs {
  static constexpr int kSlot = 16;
  static constexpr const char* kName = "PJRT_Client_AddressableDevices";
  size_t struct_size = sizeof(ClientAddressableDevicesArgs);
  void* extension_start = nullptr;
  Client* client = nullptr;
  Device* const* addressable_devices = nullptr;
  size_t num_addressable_devices = 0;
  uint64_t spare[kSpareWords] = {};
};

struct DeviceGetDescriptionArgs {
  static constexpr int kSlot = 29;
  static constexpr const char* kName = "PJRT_Device_GetDescription";
  size_t struct_size = sizeof(DeviceGetDescriptionArgs);
  void* extension_start = nullptr;
  Device* device = nullptr;
  DeviceDescription* device_description = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct DeviceDescriptionIdArgs {
  static constexpr int kSlot = 23;
  static constexpr const char* kName = "PJRT_DeviceDescription_Id";
  size_t struct_size = sizeof(DeviceDescriptionIdArgs);
  void* extension_start = nullptr;
  DeviceDescription* device_description = nullptr;
  int id = 0;
  uint64_t spare[kSpareWords] = {};
};

struct DeviceDescriptionKindArgs {
  static constexpr int kSlot = 26;
  static constexpr const char* kName = "PJRT_DeviceDescription_Kind";
  size_t struct_size = sizeof(DeviceDescriptionKindArgs);
  void* extension_start = nullptr;
  DeviceDescription* device_description = nullptr;
  const char* device_kind = nullptr;
  size_t device_kind_size = 0;
  uint64_t spare[kSpareWords] = {};
};

struct Program {
  size_t struct_size = sizeof(Program);
  void* extension_start = nullptr;
  char* code = nullptr;
  size_t code_size = 0;
  const char* format = nullptr;
  size_t format_size = 0;
  uint64_t spare[kSpareWords] = {};
};

struct ClientCompileArgs {
  static constexpr int kSlot = 20;
  static constexpr const char* kName = "PJRT_Client_Compile";
  size_t struct_size = sizeof(ClientCompileArgs);
  void* extension_start = nullptr;
  Client* client = nullptr;
  const Program* program = nullptr;
  const char* compile_options = nullptr;
  size_t compile_options_size = 0;
  LoadedExecutable* executable = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct TopologyCreateArgs {
  static constexpr int kSlot = 82;
  static constexpr const char* kName = "PJRT_TopologyDescription_Create";
  size_t struct_size = sizeof(TopologyCreateArgs);
  void* extension_start = nullptr;
  const char* topology_name = nullptr;
  size_t topology_name_size = 0;
  const NamedValue* create_options = nullptr;
  size_t num_options = 0;
  Topology* topology = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct TopologyDestroyArgs {
  static constexpr int kSlot = 83;
  static constexpr const char* kName = "PJRT_TopologyDescription_Destroy";
  size_t struct_size = sizeof(TopologyDestroyArgs);
  void* extension_start = nullptr;
  Topology* topology = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct TopologyPlatformNameArgs {
  static constexpr int kSlot = 84;
  static constexpr const char* kName = "PJRT_TopologyDescription_PlatformName";
  size_t struct_size = sizeof(TopologyPlatformNameArgs);
  void* extension_start = nullptr;
  const Topology* topology = nullptr;
  const char* platform_name = nullptr;
  size_t platform_name_size = 0;
  uint64_t spare[kSpareWords] = {};
};

struct TopologyDeviceDescriptionsArgs {
  static constexpr int kSlot = 86;
  static constexpr const char* kName = "PJRT_TopologyDescription_GetDeviceDescriptions";
  size_t struct_size = sizeof(TopologyDeviceDescriptionsArgs);
  void* extension_start = nullptr;
  const Topology* topology = nullptr;
  DeviceDescription* const* descriptions = nullptr;
  size_t num_descriptions = 0;
  uint64_t spare[kSpareWords] = {};
};

struct CompileArgs {
  static constexpr int kSlot = 89;
  static constexpr const char* kName = "PJRT_Compile";
  size_t struct_size = sizeof(CompileArgs);
  void* extension_start = nullptr;
  const Topology* topology = nullptr;
  const Program* program = nullptr;
  const char* compile_options = nullptr;
  size_t compile_options_size = 0;
  Client* client = nullptr;
  Executable* executable = nullptr;
  uint64_t spare[kSpareWords] = {};
};

// The sizes of PJRT 0.114 (0.116 has the same): below them a plugin of that age refuses the call.
static_assert(sizeof(ClientCreateArgs) >= 88 && sizeof(Program) >= 48 && sizeof(ClientCompileArgs) >= 56);
static_assert(sizeof(TopologyCreateArgs) >= 56 && sizeof(CompileArgs) >= 64);

}  // namespace tessera::pjrt::api
