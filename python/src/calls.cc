// See calls.h.
#include "calls.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace tessera_python {
namespace {

using BoundPointer = std::shared_ptr<tessera_bound>;

// Plans that stay bound for an attention: those of a step with many small batches, and of the steps whose backward is
// still to come. One that was given up is bound again when it is met.
constexpr size_t kMostBound = 64;

struct Entry {
  Attention attention;
  NumberedShape shape;
  Plan first;                                              // of calls with images: what is bound to launch them
  BoundPointer launcher;                                   // once it is
  std::list<std::pair<std::string, BoundPointer>> bounds;  // the latest first
  pid_t process = getpid();                                // an engine's threads do not follow a fork
};

struct Registry {
  std::mutex mutex;
  std::map<int64_t, Entry> entries;
};

Registry& TheRegistry() {
  static auto* const registry = new Registry;  // outlives every caller, so it is never destroyed
  return *registry;
}

CallError TakeError(tessera_error* error) {
  CallError out{.code = tessera_error_code(error),
                .text = tessera_error_text(error),
                .where = tessera_error_where(error),
                .violations = {}};
  for (size_t i = 0; i < tessera_error_num_violations(error); ++i) {
    out.violations.emplace_back(tessera_error_violation_field(error, i), tessera_error_violation_expected(error, i));
  }
  tessera_error_free(error);
  return out;
}

CallError OwnError(const std::string& code, const std::string& text) {
  return {.code = code, .text = code + ": " + text, .where = {}, .violations = {}};
}

BoundPointer FindBound(Entry& entry, const std::string& fingerprint) {
  for (auto at = entry.bounds.begin(); at != entry.bounds.end(); ++at) {
    if (at->first != fingerprint) continue;
    entry.bounds.splice(entry.bounds.begin(), entry.bounds, at);
    return entry.bounds.front().second;
  }
  return nullptr;
}

void Keep(Entry& entry, std::string fingerprint, BoundPointer bound) {
  if (FindBound(entry, fingerprint)) return;
  entry.bounds.emplace_front(std::move(fingerprint), std::move(bound));
  if (entry.bounds.size() > kMostBound) entry.bounds.pop_back();
}

struct PlanBytes {
  std::string fingerprint;
  std::span<const std::byte> bytes;
};

bool ReadOperand(std::span<const std::byte> operand, PlanBytes& out) {
  if (operand.data() == nullptr || operand.size() < kOperandHead) return false;
  if (std::memcmp(operand.data(), kOperandMagic, 8) != 0) return false;
  uint64_t length = 0;
  std::memcpy(&length, operand.data() + 8, sizeof(length));
  if (length > operand.size() - kOperandHead) return false;
  out.fingerprint.assign(reinterpret_cast<const char*>(operand.data()) + 16, 32);
  out.bytes = operand.subspan(kOperandHead, length);
  return true;
}

CallError BindPlan(const Attention& attention, const tessera_plan& plan, BoundPointer& out) {
  tessera_bound* bound = nullptr;
  tessera_error* error = nullptr;
  if (tessera_attention_bind(attention.handle.get(), &plan, &bound, &error) != 0) return TakeError(error);
  out = {bound, tessera_bound_free};
  return {};
}

// Checks the plan's bytes and binds them. Gives what is wrong.
CallError BindBytes(const Attention& attention, std::span<const std::byte> bytes, BoundPointer& out) {
  tessera_plan* plan = nullptr;
  tessera_error* error = nullptr;
  if (tessera_plan_load(attention.contract.handle.get(), bytes.data(), bytes.size(), &plan, &error) != 0) {
    return TakeError(error);
  }
  CallError problem = BindPlan(attention, *plan, out);
  tessera_plan_free(plan);
  return problem;
}

CallError RunBound(const tessera_bound& bound, Pass pass, const tessera_args& args, const tessera_call_options& call) {
  tessera_error* error = nullptr;
  const auto function = pass == Pass::kForward ? tessera_bound_forward : tessera_bound_backward;
  return function(&bound, &args, &call, nullptr, &error) == 0 ? CallError{} : TakeError(error);
}

// With the registry's lock held.
CallError FindEntry(Registry& registry, int64_t number, Entry*& out) {
  const auto at = registry.entries.find(number);
  if (at == registry.entries.end()) return OwnError("TSR-A001", "no attention has this number in this process");
  if (at->second.process != getpid()) {
    return OwnError("TSR-A001", "this attention was prepared before os.fork(); prepare it anew");
  }
  out = &at->second;  // stays where it is: entries are never removed
  return {};
}

int64_t Register(const Attention& attention, int64_t ordinal) {
  Registry& registry = TheRegistry();
  const std::scoped_lock lock(registry.mutex);
  const auto number = static_cast<int64_t>(registry.entries.size()) + 1;
  registry.entries.emplace(number, Entry{.attention = attention,
                                         .shape = {attention.contract.shape, ordinal},
                                         .first = {},
                                         .launcher = {},
                                         .bounds = {}});
  return number;
}

// Writes the plan's image into an array, where there is room for it. Gives the bytes it takes.
int64_t Image(const Attention& attention, const Plan& plan, const nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig>& to) {
  int64_t bytes = 0;
  tessera_error* error = nullptr;
  int status = 0;
  {
    const Unlocked unlocked;
    status = tessera_attention_image(attention.handle.get(), plan.handle.get(), to.size() == 0 ? nullptr : to.data(),
                                     static_cast<int64_t>(to.size()), &bytes, &error);
  }
  Check(status, error);
  return bytes;
}

// The plan whose binding launches every call with an image; the first that is given stays.
void RememberFirst(int64_t number, const Plan& plan) {
  Registry& registry = TheRegistry();
  const std::scoped_lock lock(registry.mutex);
  Entry& entry = registry.entries.at(number);
  if (!entry.first.handle) entry.first = plan;
}

// Binds a plan for the calls to come, so that they need not look at its bytes.
void Remember(int64_t number, const Plan& plan, const Bound& bound) {
  Registry& registry = TheRegistry();
  const std::scoped_lock lock(registry.mutex);
  Keep(registry.entries.at(number), tessera_plan_fingerprint(plan.handle.get()), bound.handle);
}

nb::bytes OperandHead(const Plan& plan) {
  char head[kOperandHead] = {};
  size_t num_bytes = 0;
  tessera_plan_bytes(plan.handle.get(), &num_bytes);
  const uint64_t length = num_bytes;
  std::memcpy(head, kOperandMagic, 8);
  std::memcpy(head + 8, &length, sizeof(length));
  std::memcpy(head + 16, tessera_plan_fingerprint(plan.handle.get()), 32);
  return nb::bytes(head, sizeof(head));
}

// The strides of a framework's tensor: batch, head, token, and dim, which is 1.
using Strides = std::tuple<int64_t, int64_t, int64_t, int64_t>;
using Bytes = std::tuple<uintptr_t, int64_t>;
// Element type, memory, ordinal and stream, which all tensors of a call share.
using Where = std::tuple<int64_t, int64_t, int64_t, uintptr_t>;

// One of a call's tensors.
template <size_t kIndex, class Addresses, class StridesOf>
tessera_tensor TensorAt(const Addresses& addresses, const StridesOf& strides, const Where& where) {
  const auto& [batch_stride, head_stride, token_stride, dim_stride] = std::get<kIndex>(strides);
  return {reinterpret_cast<void*>(std::get<kIndex>(addresses)),
          std::get<0>(where),
          batch_stride,
          head_stride,
          token_stride,
          std::get<1>(where),
          std::get<2>(where)};
}

void CallAndRaise(int64_t number, std::span<const std::byte> operand, Pass pass, const tessera_args& args,
                  void* stream) {
  CallError problem;
  {
    const Unlocked unlocked;
    problem = CallByNumber(number, operand, pass, args, stream);
  }
  if (problem.ok()) return;
  nb::list violations;
  for (const auto& [field, expected] : problem.violations) violations.append(nb::make_tuple(field, expected));
  nb::object raised = nb::module_::import_("tessera._errors")
                          .attr("TesseraError")(problem.text, problem.code, problem.where, violations);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  throw nb::python_error();
}

void Call(int64_t number, const Bytes& operand, Pass pass, const tessera_args& args, const Where& where) {
  CallAndRaise(number,
               {reinterpret_cast<const std::byte*>(std::get<0>(operand)), static_cast<size_t>(std::get<1>(operand))},
               pass, args, reinterpret_cast<void*>(std::get<3>(where)));
}

// The tensors are q, k, v, o; the floats sink_logits, lse.
void CallForward(int64_t number, const Bytes& operand, const Where& where,
                 const std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t>& addresses,
                 const std::tuple<Strides, Strides, Strides, Strides>& strides,
                 const std::tuple<uintptr_t, uintptr_t>& floats) {
  tessera_args args = tessera_args_init();
  args.q = TensorAt<0>(addresses, strides, where);
  args.k = TensorAt<1>(addresses, strides, where);
  args.v = TensorAt<2>(addresses, strides, where);
  args.o = TensorAt<3>(addresses, strides, where);
  args.sink_logits = reinterpret_cast<const float*>(std::get<0>(floats));
  args.lse = reinterpret_cast<float*>(std::get<1>(floats));
  Call(number, operand, Pass::kForward, args, where);
}

// The tensors are q, k, v, o, dout, dq, dk, dv; the floats sink_logits, lse, dsink_logits.
void CallBackward(
    int64_t number, const Bytes& operand, const Where& where,
    const std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t>& addresses,
    const std::tuple<Strides, Strides, Strides, Strides, Strides, Strides, Strides, Strides>& strides,
    const std::tuple<uintptr_t, uintptr_t, uintptr_t>& floats) {
  tessera_args args = tessera_args_init();
  args.q = TensorAt<0>(addresses, strides, where);
  args.k = TensorAt<1>(addresses, strides, where);
  args.v = TensorAt<2>(addresses, strides, where);
  args.o = TensorAt<3>(addresses, strides, where);
  args.dout = TensorAt<4>(addresses, strides, where);
  args.dq = TensorAt<5>(addresses, strides, where);
  args.dk = TensorAt<6>(addresses, strides, where);
  args.dv = TensorAt<7>(addresses, strides, where);
  args.sink_logits = reinterpret_cast<const float*>(std::get<0>(floats));
  args.lse = reinterpret_cast<float*>(std::get<1>(floats));
  args.dsink_logits = reinterpret_cast<float*>(std::get<2>(floats));
  Call(number, operand, Pass::kBackward, args, where);
}

}  // namespace

const NumberedShape* ShapeOfNumber(int64_t number) {
  Registry& registry = TheRegistry();
  const std::scoped_lock lock(registry.mutex);
  const auto at = registry.entries.find(number);
  return at == registry.entries.end() ? nullptr : &at->second.shape;
}

CallError CallByNumber(int64_t number, std::span<const std::byte> operand, Pass pass, const tessera_args& args,
                       void* stream) {
  PlanBytes plan;
  if (!ReadOperand(operand, plan)) return OwnError("TSR-P005", "the plan operand is not one that Plan.operand() made");
  Registry& registry = TheRegistry();
  BoundPointer bound;
  Entry* entry = nullptr;
  {
    const std::scoped_lock lock(registry.mutex);
    if (CallError problem = FindEntry(registry, number, entry); !problem.ok()) return problem;
    bound = FindBound(*entry, plan.fingerprint);
  }
  if (!bound) {
    if (CallError problem = BindBytes(entry->attention, plan.bytes, bound); !problem.ok()) return problem;
    const std::scoped_lock lock(registry.mutex);
    Keep(*entry, plan.fingerprint, bound);
  }
  tessera_call_options call = tessera_call_options_init();
  call.stream = stream;
  return RunBound(*bound, pass, args, call);
}

void CallOnHost(int64_t number, std::span<const std::byte> operand, Pass pass, const tessera_args& args) {
  CallAndRaise(number, operand, pass, args, nullptr);
}

CallError CallWithImage(int64_t number, std::span<const std::byte> image, Pass pass, const tessera_args& args,
                        void* stream) {
  Registry& registry = TheRegistry();
  BoundPointer bound;
  {
    const std::scoped_lock lock(registry.mutex);  // also while it is bound, once
    Entry* entry = nullptr;
    if (CallError problem = FindEntry(registry, number, entry); !problem.ok()) return problem;
    if (!entry->launcher && !entry->first.handle) return OwnError("TSR-A001", "no plan of this attention was made yet");
    if (!entry->launcher) {
      if (CallError problem = BindPlan(entry->attention, *entry->first.handle, entry->launcher); !problem.ok()) {
        return problem;
      }
    }
    bound = entry->launcher;
  }
  tessera_call_options call = tessera_call_options_init();
  call.stream = stream;
  call.image = image.data();
  call.image_bytes = static_cast<int64_t>(image.size());
  return RunBound(*bound, pass, args, call);
}

void AddCalls(nb::module_& m) {
  m.def("register_attention", Register, nb::arg("attention"), nb::arg("ordinal"));
  m.def("plan_image", Image, nb::arg("attention"), nb::arg("plan"), nb::arg("to").noconvert());
  m.def("remember_first", RememberFirst, nb::arg("number"), nb::arg("plan"));
  m.def("remember", Remember, nb::arg("number"), nb::arg("plan"), nb::arg("bound"));
  m.def("operand_head", OperandHead, nb::arg("plan"));
  m.def("call_forward", CallForward);
  m.def("call_backward", CallBackward);
}

}  // namespace tessera_python
