// A plugin that does nothing but be wrong in the way it is told to: TESSERA_FAKE_PLUGIN names the way, read when the
// function table is asked for. Without it, a plugin of a far newer version that has one device and runs nothing.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "lanes/xla/pjrt/api_buffer.h"
#include "lanes/xla/pjrt/api_executable.h"

namespace {

namespace api = tessera::pjrt::api;

// What a library can do to the process that loads it.
void GoWrong(std::string_view how) {
  if (how == "crash") std::abort();
  if (how == "exit") std::exit(0);
  if (how == "quit") _exit(7);
  while (how == "hang") pause();
}

std::string_view FakeKind() {
  const char* kind = std::getenv("TESSERA_FAKE_PLUGIN");
  return kind == nullptr ? "" : kind;
}

__attribute__((constructor)) void Construct() {
  if (FakeKind().starts_with("load_")) GoWrong(FakeKind().substr(5));
}

// Static storage stands in for the things a plugin would allocate.
char client, device, description;
const char kMessage[] = "the fake cannot do this";

void ErrorDestroy(api::ErrorDestroyArgs*) {}

void ErrorMessage(api::ErrorMessageArgs* args) {
  args->message = kMessage;
  args->message_size = std::strlen(kMessage);
}

api::Error* ErrorGetCode(api::ErrorGetCodeArgs* args) {
  args->code = 12;
  return nullptr;
}

template <class Args>
api::Error* Succeed(Args*) {
  return nullptr;
}

template <class Args>
api::Error* Refuse(Args*) {
  return reinterpret_cast<api::Error*>(&client);
}

api::Error* ClientCreate(api::ClientCreateArgs* args) {
  args->client = reinterpret_cast<api::Client*>(&client);
  return nullptr;
}

api::Error* PlatformName(api::ClientPlatformNameArgs* args) {
  args->platform_name = "fake";
  args->platform_name_size = 4;
  return nullptr;
}

api::Error* PlatformVersion(api::ClientPlatformVersionArgs* args) {
  args->platform_version = "1";
  args->platform_version_size = 1;
  return nullptr;
}

api::Error* Devices(api::ClientAddressableDevicesArgs* args) {
  static api::Device* const devices[] = {reinterpret_cast<api::Device*>(&device)};
  args->addressable_devices = devices;
  args->num_addressable_devices = 1;
  return nullptr;
}

api::Error* GetDescription(api::DeviceGetDescriptionArgs* args) {
  args->device_description = reinterpret_cast<api::DeviceDescription*>(&description);
  return nullptr;
}

api::Error* Kind(api::DeviceDescriptionKindArgs* args) {
  args->device_kind = "fake";
  args->device_kind_size = 4;
  return nullptr;
}

template <class Args>
void Set(api::Table& table, api::Error* (*function)(Args*)) {
  table.slots[Args::kSlot] = reinterpret_cast<void*>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const api::Table* GetPjrtApi() {
  const std::string_view kind = FakeKind();
  if (kind.starts_with("table_")) GoWrong(kind.substr(6));
  if (kind == "no_table") return nullptr;
  static api::Table table;
  table = {};
  table.struct_size = sizeof(table);
  table.pjrt_api_version = {sizeof(api::Version), nullptr, 0, 999};
  table.slots[api::ErrorDestroyArgs::kSlot] = reinterpret_cast<void*>(&ErrorDestroy);
  table.slots[api::ErrorMessageArgs::kSlot] = reinterpret_cast<void*>(&ErrorMessage);
  Set(table, &ErrorGetCode);
  Set(table, &Succeed<api::PluginInitializeArgs>);
  Set(table, &Succeed<api::PluginAttributesArgs>);
  Set(table, &Succeed<api::EventDestroyArgs>);
  Set(table, &Succeed<api::EventAwaitArgs>);
  Set(table, &ClientCreate);
  Set(table, &PlatformName);
  Set(table, &PlatformVersion);
  Set(table, &Devices);
  Set(table, &GetDescription);
  Set(table, &Succeed<api::DeviceDescriptionIdArgs>);
  Set(table, &Kind);
  Set(table, &Refuse<api::ClientCompileArgs>);
  if (kind == "old") table.pjrt_api_version.minor_version = 40;
  if (kind == "just_too_old") table.pjrt_api_version.minor_version = 80;
  if (kind == "major") table.pjrt_api_version.major_version = 1;
  if (kind == "no_version") table.struct_size = 16;
  if (kind == "short") table.struct_size = offsetof(api::Table, slots) + 3 * sizeof(void*);
  if (kind == "empty_slot") table.slots[api::EventAwaitArgs::kSlot] = nullptr;
  if (kind == "no_compile")
    table.struct_size = offsetof(api::Table, slots) + api::ClientCompileArgs::kSlot * sizeof(void*);
  if (kind == "fails") Set(table, &Refuse<api::PluginInitializeArgs>);
  return &table;
}
