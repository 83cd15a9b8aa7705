// The PJRT structs about compiled programs: as api.h, in a file of their own.
#pragma once

#include "lanes/xla/pjrt/api.h"

namespace tessera::pjrt::api {

struct ExecutableDestroyArgs {
  static constexpr int kSlot = 40;
  static constexpr const char* kName = "PJRT_Executable_Destroy";
  size_t struct_size = sizeof(ExecutableDestroyArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct NumOutputsArgs {
  static constexpr int kSlot = 44;
  static constexpr const char* kName = "PJRT_Executable_NumOutputs";
  size_t struct_size = sizeof(NumOutputsArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  size_t num_outputs = 0;
  uint64_t spare[kSpareWords] = {};
};

struct CodeSizeArgs {
  static constexpr int kSlot = 45;
  static constexpr const char* kName = "PJRT_Executable_SizeOfGeneratedCodeInBytes";
  size_t struct_size = sizeof(CodeSizeArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  int64_t size_in_bytes = 0;
  uint64_t spare[kSpareWords] = {};
};

struct CostAnalysisArgs {
  static constexpr int kSlot = 46;
  static constexpr const char* kName = "PJRT_Executable_GetCostAnalysis";
  size_t struct_size = sizeof(CostAnalysisArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  size_t num_properties = 0;
  const NamedValue* properties = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct OptimizedProgramArgs {
  static constexpr int kSlot = 48;
  static constexpr const char* kName = "PJRT_Executable_OptimizedProgram";
  size_t struct_size = sizeof(OptimizedProgramArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  Program* program = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct SerializeArgs {
  static constexpr int kSlot = 49;
  static constexpr const char* kName = "PJRT_Executable_Serialize";
  size_t struct_size = sizeof(SerializeArgs);
  void* extension_start = nullptr;
  const Executable* executable = nullptr;
  const char* serialized_bytes = nullptr;
  size_t serialized_bytes_size = 0;
  SerializedExecutable* serialized_executable = nullptr;
  void (*serialized_executable_deleter)(SerializedExecutable*) = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct OutputElementTypesArgs {
  static constexpr int kSlot = 90;
  static constexpr const char* kName = "PJRT_Executable_OutputElementTypes";
  size_t struct_size = sizeof(OutputElementTypesArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  int32_t* output_types = nullptr;
  size_t num_output_types = 0;
  uint64_t spare[kSpareWords] = {};
};

struct OutputDimensionsArgs {
  static constexpr int kSlot = 91;
  static constexpr const char* kName = "PJRT_Executable_OutputDimensions";
  size_t struct_size = sizeof(OutputDimensionsArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  size_t num_outputs = 0;
  const int64_t* dims = nullptr;
  const size_t* dim_sizes = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct FingerprintArgs {
  static constexpr int kSlot = 94;
  static constexpr const char* kName = "PJRT_Executable_Fingerprint";
  size_t struct_size = sizeof(FingerprintArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  const char* executable_fingerprint = nullptr;
  size_t executable_fingerprint_size = 0;
  uint64_t spare[kSpareWords] = {};
};

struct MemoryStatsArgs {
  static constexpr int kSlot = 96;
  static constexpr const char* kName = "PJRT_Executable_GetCompiledMemoryStats";
  size_t struct_size = sizeof(MemoryStatsArgs);
  void* extension_start = nullptr;
  Executable* executable = nullptr;
  int64_t generated_code_size_in_bytes = -1;
  int64_t argument_size_in_bytes = -1;
  int64_t output_size_in_bytes = -1;
  int64_t alias_size_in_bytes = -1;
  int64_t temp_size_in_bytes = -1;
  int64_t host_generated_code_size_in_bytes = -1;
  int64_t host_argument_size_in_bytes = -1;
  int64_t host_output_size_in_bytes = -1;
  int64_t host_alias_size_in_bytes = -1;
  int64_t host_temp_size_in_bytes = -1;
  int64_t peak_memory_in_bytes = -1;
  uint64_t spare[kSpareWords] = {};
};

struct LoadedDestroyArgs {
  static constexpr int kSlot = 50;
  static constexpr const char* kName = "PJRT_LoadedExecutable_Destroy";
  size_t struct_size = sizeof(LoadedDestroyArgs);
  void* extension_start = nullptr;
  LoadedExecutable* executable = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct GetExecutableArgs {
  static constexpr int kSlot = 51;
  static constexpr const char* kName = "PJRT_LoadedExecutable_GetExecutable";
  size_t struct_size = sizeof(GetExecutableArgs);
  void* extension_start = nullptr;
  LoadedExecutable* loaded_executable = nullptr;
  Executable* executable = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct LoadedDevicesArgs {
  static constexpr int kSlot = 52;
  static constexpr const char* kName = "PJRT_LoadedExecutable_AddressableDevices";
  size_t struct_size = sizeof(LoadedDevicesArgs);
  void* extension_start = nullptr;
  LoadedExecutable* executable = nullptr;
  Device* const* addressable_devices = nullptr;
  size_t num_addressable_devices = 0;
  uint64_t spare[kSpareWords] = {};
};

struct ExecuteOptions {
  size_t struct_size = sizeof(ExecuteOptions);
  void* extension_start = nullptr;
  void* send_callbacks = nullptr;
  void* recv_callbacks = nullptr;
  size_t num_send_ops = 0;
  size_t num_recv_ops = 0;
  int launch_id = 0;
  const int64_t* non_donatable_input_indices = nullptr;
  size_t num_non_donatable_input_indices = 0;
  void* context = nullptr;
  const char* call_location = nullptr;
  size_t num_tasks = 0;
  int* task_ids = nullptr;
  int64_t* incarnation_ids = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct ExecuteArgs {
  static constexpr int kSlot = 55;
  static constexpr const char* kName = "PJRT_LoadedExecutable_Execute";
  size_t struct_size = sizeof(ExecuteArgs);
  void* extension_start = nullptr;
  LoadedExecutable* executable = nullptr;
  ExecuteOptions* options = nullptr;
  Buffer* const* const* argument_lists = nullptr;
  size_t num_devices = 0;
  size_t num_args = 0;
  Buffer** const* output_lists = nullptr;
  Event** device_complete_events = nullptr;
  Device* execute_device = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct DeserializeArgs {
  static constexpr int kSlot = 56;
  static constexpr const char* kName = "PJRT_Executable_DeserializeAndLoad";
  size_t struct_size = sizeof(DeserializeArgs);
  void* extension_start = nullptr;
  Client* client = nullptr;
  const char* serialized_executable = nullptr;
  size_t serialized_executable_size = 0;
  LoadedExecutable* loaded_executable = nullptr;
  const char* overridden_serialized_compile_options = nullptr;
  size_t overridden_serialized_compile_options_size = 0;
  uint64_t spare[kSpareWords] = {};
};

// The sizes of PJRT 0.114.
static_assert(sizeof(OptimizedProgramArgs) >= 32 && sizeof(SerializeArgs) >= 56 && sizeof(MemoryStatsArgs) >= 144);
static_assert(sizeof(ExecuteOptions) >= 144 && sizeof(ExecuteArgs) >= 80 && sizeof(DeserializeArgs) >= 72);

}  // namespace tessera::pjrt::api
