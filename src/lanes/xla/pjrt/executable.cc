#include "lanes/xla/pjrt/executable.h"

#include <fmt/format.h>

#include <array>

#include "lanes/xla/pjrt/client.h"

namespace tessera::pjrt {
namespace {

tl::unexpected<Error> Mismatch(std::string message, std::string where = "execute") {
  return Fail(ErrorCode::kProgramMismatch, std::move(message), std::move(where));
}

tl::unexpected<Error> FailEmpty() { return Mismatch("the program is empty: it was moved from, or never compiled"); }

}  // namespace

Result<Executable> Executable::Adopt(Client& client, api::LoadedExecutable* raw, const CompileOptions& options) {
  const api::Table& table = client.plugin().table();
  Executable executable;
  executable.client_ = &client;
  executable.handle_ = {&table, raw};
  executable.options_ = options;
  api::GetExecutableArgs get{.loaded_executable = raw};
  if (Status ok = Call(table, get); !ok) return tl::unexpected(ok.error());
  Result<CompiledProgram> program = CompiledProgram::Adopt(table, get.executable);
  if (!program) return tl::unexpected(program.error());
  executable.program_ = std::move(*program);
  if (Status ok = executable.CheckDeclaration(); !ok) return tl::unexpected(ok.error());
  if (IsPortable(options)) return executable;
  api::LoadedDevicesArgs devices{.executable = raw};
  if (Status ok = Call(table, devices); !ok) return tl::unexpected(ok.error());
  for (size_t i = 0; i < devices.num_addressable_devices; ++i) {
    executable.devices_.push_back(client.IndexOf(devices.addressable_devices[i]));
  }
  const int64_t expected = options.num_replicas * options.num_partitions;
  if (static_cast<int64_t>(executable.devices_.size()) != expected) {
    return Mismatch(fmt::format("the program was compiled for {} devices; {} of this process run it", expected,
                                executable.devices_.size()),
                    "compile");
  }
  return executable;
}

// Runs are checked against the declaration, so the declaration is checked against the program, where a plugin shows it.
Status Executable::CheckDeclaration() const {
  const Result<OptimizedProgram> inside = program_.Optimized();
  if (!inside || !inside->parameters) return {};
  const std::vector<TensorType>& taken = *inside->parameters;
  const std::vector<TensorType>& declared = options_.inputs;
  if (taken.size() != declared.size()) {
    return Mismatch(fmt::format("{} inputs were declared; the program takes {}", declared.size(), taken.size()),
                    "compile");
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i] == declared[i]) continue;
    return Mismatch(fmt::format("{} was declared; the program takes {}", ToText(declared[i]), ToText(taken[i])),
                    fmt::format("input {}", i));
  }
  return {};
}

Status Executable::CheckArgs(std::span<const Buffer* const> args, int64_t device, const ExecuteOptions& options) const {
  const std::vector<TensorType>& inputs = options_.inputs;
  if (args.size() != inputs.size()) {
    return Mismatch(fmt::format("the program takes {} buffers; {} were given", inputs.size(), args.size()));
  }
  for (const int64_t index : options.do_not_donate) {
    if (index < 0 || index >= static_cast<int64_t>(inputs.size())) {
      return Mismatch(fmt::format("do_not_donate names input {} of {}", index, inputs.size()));
    }
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const auto where = [i] { return fmt::format("input {}", i); };
    if (args[i] == nullptr || args[i]->raw() == nullptr)
      return Mismatch("no buffer was given, or an empty one", where());
    if (args[i]->type() != inputs[i]) {
      return Mismatch(fmt::format("the program was declared to take {}; the buffer is {}", ToText(inputs[i]),
                                  ToText(args[i]->type())),
                      where());
    }
    if (args[i]->device() != device) {
      return Mismatch(
          fmt::format("the program runs on device {}; the buffer is on device {}", device, args[i]->device()), where());
    }
    const Result<bool> donated = args[i]->IsDonated();
    if (!donated) return tl::unexpected(donated.error());
    if (*donated) return Mismatch("the buffer was donated to an earlier run and holds nothing any more", where());
  }
  return {};
}

Result<std::vector<Launched>> Executable::Launch(std::span<const std::span<const Buffer* const>> args,
                                                 std::span<const int64_t> devices, const ExecuteOptions& options,
                                                 bool with_events) const {
  const api::Table& table = handle_.table();
  const size_t num_devices = devices.size();
  const size_t num_outputs = program_.outputs().size();
  std::vector<std::vector<api::Buffer*>> arguments(num_devices);
  std::vector<std::vector<api::Buffer*>> outputs(num_devices, std::vector<api::Buffer*>(num_outputs));
  std::vector<api::Buffer* const*> argument_lists;
  std::vector<api::Buffer**> output_lists;
  std::vector<api::Event*> events(num_devices);
  for (size_t d = 0; d < num_devices; ++d) {
    if (Status ok = CheckArgs(args[d], devices[d], options); !ok) return tl::unexpected(ok.error());
    for (const Buffer* buffer : args[d]) arguments[d].push_back(buffer->raw());
    argument_lists.push_back(arguments[d].data());
    output_lists.push_back(outputs[d].data());
  }
  api::ExecuteOptions raw_options{.non_donatable_input_indices = options.do_not_donate.data(),
                                  .num_non_donatable_input_indices = options.do_not_donate.size()};
  api::ExecuteArgs call{.executable = handle_.get(),
                        .options = &raw_options,
                        .argument_lists = argument_lists.data(),
                        .num_devices = num_devices,
                        .num_args = options_.inputs.size(),
                        .output_lists = output_lists.data(),
                        .device_complete_events = with_events ? events.data() : nullptr,
                        .execute_device = devices_.empty() ? client_->raw_device(devices[0]) : nullptr};
  if (Status ok = Call(table, call); !ok) return tl::unexpected(ok.error());
  // Everything that was handed out is taken over before anything can fail.
  std::vector<Launched> runs(num_devices);
  Status failed;
  for (size_t d = 0; d < num_devices; ++d) {
    if (events[d] != nullptr) runs[d].done = Event(table, events[d]);
    for (api::Buffer* raw : outputs[d]) {
      Result<Buffer> buffer = Buffer::Adopt(table, raw, devices[d]);
      if (buffer) {
        runs[d].outputs.push_back(std::move(*buffer));
      } else if (failed) {
        failed = tl::unexpected(buffer.error());
      }
    }
  }
  if (!failed) return tl::unexpected(failed.error());
  return runs;
}

Result<std::vector<Launched>> Executable::ExecuteOnOne(std::span<const Buffer* const> args,
                                                       const ExecuteOptions& options, bool with_events) const {
  if (!handle_) return FailEmpty();
  const int64_t count = static_cast<int64_t>(client_->devices().size());
  if (options.device < 0 || options.device >= count) {
    return Mismatch(fmt::format("device {} of {}", options.device, count));
  }
  if (devices_.size() > 1) {
    return Mismatch(
        fmt::format("the program runs on {} devices at once; arguments for one were given", devices_.size()));
  }
  if (!devices_.empty() && devices_[0] != options.device) {
    return Mismatch(fmt::format("the program was compiled for device {} alone; device {} was asked for", devices_[0],
                                options.device));
  }
  const std::array<std::span<const Buffer* const>, 1> all = {args};
  const std::array<int64_t, 1> devices = {options.device};
  return Launch(all, devices, options, with_events);
}

Result<std::vector<Buffer>> Executable::Execute(std::span<const Buffer* const> args,
                                                const ExecuteOptions& options) const {
  Result<std::vector<Launched>> runs = ExecuteOnOne(args, options, false);
  if (!runs) return tl::unexpected(runs.error());
  return std::move(runs->front().outputs);
}

Result<Launched> Executable::ExecuteWithEvent(std::span<const Buffer* const> args,
                                              const ExecuteOptions& options) const {
  Result<std::vector<Launched>> runs = ExecuteOnOne(args, options, true);
  if (!runs) return tl::unexpected(runs.error());
  return std::move(runs->front());
}

Result<std::vector<Launched>> Executable::ExecuteOnAll(std::span<const std::vector<const Buffer*>> args,
                                                       const ExecuteOptions& options) const {
  if (!handle_) return FailEmpty();
  if (devices_.empty()) return Mismatch("a portable program runs on one device at a time");
  if (args.size() != devices_.size()) {
    return Mismatch(
        fmt::format("the program runs on {} devices; arguments for {} were given", devices_.size(), args.size()));
  }
  const std::vector<std::span<const Buffer* const>> all(args.begin(), args.end());
  return Launch(all, devices_, options, true);
}

}  // namespace tessera::pjrt
