// TPU kernels inside a whole program, on XLA's CPU plugin: each becomes a call of the host's interpreter, on the very
// text that the program carries to the compiler, and nothing else of the program changes. So what surrounds a kernel is
// proven with the numbers: padding, tables, bounds, calls that share a list, sums.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/mosaic/parse.h"
#include "lanes/xla/pjrt/ffi.h"
#include "tessera/error.h"

namespace tessera {

// By number, of all programs of this process. Kernels stay, as compiled programs do.
class KernelList {
 public:
  static KernelList& All() {
    static auto* const kAll = new KernelList;
    return *kAll;
  }
  Result<int64_t> Add(const std::string& text) {
    Result<mosaic::Module> kernel = mosaic::Parse(text);
    if (!kernel) return tl::unexpected(kernel.error());
    const std::lock_guard lock(mutex_);
    const auto number = static_cast<int64_t>(kernels_.size());
    kernels_.emplace(number, *std::move(kernel));
    return number;
  }
  const mosaic::Module* Find(int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto kernel = kernels_.find(number);
    return kernel == kernels_.end() ? nullptr : &kernel->second;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, mosaic::Module> kernels_;
};

namespace interpreted_kernels {

inline constexpr std::string_view kFunction = "tessera_test_kernel";

// By XLA's number of it.
inline Result<mosaic::Element> ElementOf(uint32_t type) {
  switch (type) {
    case 2:
      return mosaic::Element::kI8;
    case 3:
      return mosaic::Element::kI16;
    case 4:
      return mosaic::Element::kI32;
    case 11:
      return mosaic::Element::kF32;
    case 16:
      return mosaic::Element::kBf16;
    default:
      return Fail(ErrorCode::kProgramMismatch, "an operand of a type that no kernel has: " + std::to_string(type));
  }
}

inline Result<mosaic::ArrayType> TypeOf(const pjrt::ffi::Buffer& buffer) {
  Result<mosaic::Element> element = ElementOf(buffer.type);
  if (!element) return tl::unexpected(element.error());
  return mosaic::ArrayType{*element, {buffer.dims, buffer.dims + buffer.rank}};
}

inline Status RunKernel(const pjrt::HostCall& call) {
  std::vector<mosaic::ArrayView> operands;
  for (size_t i = 0; i < call.num_operands(); ++i) {
    const Result<mosaic::ArrayType> type = TypeOf(call.Operand(i));
    if (!type) return tl::unexpected(type.error());
    operands.push_back({type->element,
                        type->dims,
                        {static_cast<const std::byte*>(call.Operand(i).data), static_cast<size_t>(BytesOf(*type))}});
  }
  std::vector<mosaic::ArrayType> types;
  for (size_t i = 0; i < call.num_results(); ++i) {
    Result<mosaic::ArrayType> type = TypeOf(call.Result(i));
    if (!type) return tl::unexpected(type.error());
    types.push_back(*std::move(type));
  }
  const mosaic::Module* kernel = KernelList::All().Find(call.Number("kernel").value_or(-1));
  if (kernel == nullptr) return Fail(ErrorCode::kProgramMismatch, "a call of a kernel that nobody has");
  const Result<mosaic::Interpreted> ran = mosaic::Interpret(*kernel, operands, types);
  if (!ran) return tl::unexpected(ran.error());
  for (size_t i = 0; i < types.size(); ++i) {
    std::memcpy(call.Result(i).data, ran->results[i].data(), ran->results[i].size());
  }
  return {};
}

inline std::string FromBase64(std::string_view text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) break;  // padding
    word = word << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(word >> bits & 0xFFU);
  }
  return bytes;
}

}  // namespace interpreted_kernels

// The program with a call of the interpreter in the place of each kernel's, and how many there were.
struct InterpretedProgram {
  std::string text;
  size_t calls = 0;
};
inline Result<InterpretedProgram> InterpretKernels(std::string text) {
  constexpr std::string_view kTarget = "@tpu_custom_call(";
  constexpr std::string_view kConfig = "backend_config = \"";
  constexpr std::string_view kBody = "\\22body\\22: \\22";
  size_t calls = 0;
  for (size_t at = text.find(kTarget); at != std::string::npos; at = text.find(kTarget, at), ++calls) {
    text.replace(at, kTarget.size(), "@" + std::string(interpreted_kernels::kFunction) + "(");
    const size_t begin = text.find(kConfig, at);
    const size_t body = text.find(kBody, begin);
    const size_t end = text.find("operand_layouts", begin);
    if (begin == std::string::npos || body == std::string::npos || end == std::string::npos || body > end) {
      return Fail(ErrorCode::kProgramMismatch, "a call without a kernel in it");
    }
    const std::string_view rest = std::string_view(text).substr(body + kBody.size());
    const Result<int64_t> number = KernelList::All().Add(interpreted_kernels::FromBase64(rest));
    if (!number) return tl::unexpected(number.error());
    const std::string config = "{kernel = " + std::to_string(*number) + " : i64}";
    text.replace(begin, end - begin, "api_version = 4 : i32, backend_config = " + config + ", ");
  }
  return InterpretedProgram{std::move(text), calls};
}

// Before such a program is compiled.
inline Status RegisterInterpreter(const pjrt::Plugin& plugin) {
  const pjrt::HostFunction function{interpreted_kernels::kFunction, &pjrt::Answer<&interpreted_kernels::RunKernel>};
  return pjrt::Register(plugin, pjrt::kHostPlatform, std::span(&function, 1));
}

}  // namespace tessera
