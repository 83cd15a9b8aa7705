// The short way of PyTorch's calls on the CPU: tensors are read by DLPack's C interface, where this PyTorch has it,
// instead of by a Python call for each of their properties, which would cost several times the engine's call. Whatever
// is not as the contract says it is left untouched for the long way, in tessera/torch.py, which says what is wrong.
#include <array>
#include <cstring>

#include "calls.h"
#include "dlpack.h"

namespace tessera_python {
namespace {

// Where a storage was freed a tensor's address is its offset in it, so low ones are for the long way.
constexpr uintptr_t kLowest = uintptr_t{1} << 40;

struct Framework {
  nb::object tensor;
  nb::object parameter;
  nb::object is_neg;  // the name, as Python looks names up
  int (*read)(void*, dlpack::Tensor*) = nullptr;
};

Framework& TheFramework() {
  static auto* const framework = new Framework;  // outlives the interpreter, which frees what it has
  return *framework;
}

// Remembers the classes that may go the short way, and how they are read. Gives whether there is a short way.
bool SetUp(nb::handle tensor, nb::handle parameter, nb::handle exchange) {
  Framework& of = TheFramework();
  if (exchange.is_none()) return false;
  const auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  while (api != nullptr && api->major != dlpack::kMajor) api = api->earlier;
  if (api == nullptr || api->read == nullptr) return false;
  of = {nb::borrow(tensor), nb::borrow(parameter), nb::str("is_neg"), api->read};
  return true;
}

// Whether it is a tensor, and of no subclass, which may be anything. PyTorch's own function does not ask.
bool IsTensor(nb::handle x) {
  const Framework& of = TheFramework();
  return x.type().ptr() == of.tensor.ptr() || x.type().ptr() == of.parameter.ptr();
}

// Whether nothing but autograd looks at it: it is no lazy view either.
bool IsPlain(nb::handle x) {
  if (!IsTensor(x)) return false;
  const Framework& of = TheFramework();
  const nb::object is_neg = nb::steal(PyObject_CallMethodObjArgs(x.ptr(), of.is_neg.ptr(), nullptr));
  if (!is_neg.is_valid()) throw nb::python_error();
  return is_neg.ptr() == Py_False;
}

// Sizes that a call's tensors are compared with, by what the C interface says of the contract.
class Reader {
 public:
  explicit Reader(const tessera_shape& shape) : shape_(shape) {}

  bool Read(nb::handle x, const Axes& axes, tessera_tensor& out) const {
    dlpack::Tensor t{};
    if (!Get(x, t) || t.ndim != 4) return false;
    const bool is_bf16 = shape_.dtype == TESSERA_DTYPE_BF16;
    const bool is_f32 = shape_.dtype == TESSERA_DTYPE_F32;
    if (t.dtype_code != (is_bf16 ? dlpack::kBfloat : dlpack::kFloat) || t.dtype_bits != (is_f32 ? 32 : 16))
      return false;
    const std::array<int64_t, 4> want = {axes.batch, axes.heads, axes.tokens, axes.dim};
    if (std::memcmp(t.shape, want.data(), sizeof(want)) != 0) return false;
    out = tessera_tensor_bhtd(static_cast<std::byte*>(t.data) + t.byte_offset, axes.heads, axes.tokens, axes.dim);
    out.dtype = shape_.dtype;
    if (t.strides == nullptr) return true;
    if (t.strides[3] != 1) return false;
    out.batch_stride = t.strides[0];
    out.head_stride = t.strides[1];
    out.token_stride = t.strides[2];
    return true;
  }

  // Dense f32 of every row, which this module made itself.
  bool ReadRows(nb::handle x, float*& out) const {
    dlpack::Tensor t{};
    if (!Get(x, t) || t.ndim != 3 || t.dtype_code != dlpack::kFloat || t.dtype_bits != 32) return false;
    const std::array<int64_t, 3> want = {shape_.batch, shape_.num_q_heads, shape_.q_len};
    if (std::memcmp(t.shape, want.data(), sizeof(want)) != 0) return false;
    if (t.strides != nullptr) {
      if (t.strides[2] != 1 || t.strides[1] != want[2] || t.strides[0] != want[1] * want[2]) return false;
    }
    out = reinterpret_cast<float*>(static_cast<std::byte*>(t.data) + t.byte_offset);
    return true;
  }

 private:
  static bool Get(nb::handle x, dlpack::Tensor& t) {
    if (!IsTensor(x)) return false;
    if (TheFramework().read(x.ptr(), &t) != 0) {
      PyErr_Clear();
      return false;
    }
    return t.device_type == dlpack::kCpu && t.dtype_lanes == 1 && reinterpret_cast<uintptr_t>(t.data) >= kLowest;
  }

  const tessera_shape& shape_;
};

bool IsReady(int64_t number, const NumberedShape*& shape) {
  shape = ShapeOfNumber(number);
  return shape != nullptr && TheFramework().read != nullptr && shape->shape.sink_logits == 0;
}

// Whether q, k and v may go the short way.
bool ArePlain(nb::handle q, nb::handle k, nb::handle v) { return IsPlain(q) && IsPlain(k) && IsPlain(v); }

// False where this is not for the short way; then nothing was written.
bool TorchForward(int64_t number, uintptr_t operand, int64_t operand_bytes, nb::handle q, nb::handle k, nb::handle v,
                  nb::handle o, nb::handle lse) {
  const NumberedShape* of = nullptr;
  if (!IsReady(number, of)) return false;
  const tessera_shape& s = of->shape;
  const Reader reader(s);
  tessera_args args = tessera_args_init();
  if (!reader.Read(q, AxesOfQ(s), args.q) || !reader.Read(k, AxesOfK(s), args.k) ||
      !reader.Read(v, AxesOfV(s), args.v) || !reader.Read(o, AxesOfO(s), args.o) || !reader.ReadRows(lse, args.lse)) {
    return false;
  }
  CallOnHost(number, {reinterpret_cast<const std::byte*>(operand), static_cast<size_t>(operand_bytes)}, Pass::kForward,
             args);
  return true;
}

bool TorchBackward(int64_t number, uintptr_t operand, int64_t operand_bytes, nb::handle dout, nb::handle q,
                   nb::handle k, nb::handle v, nb::handle o, nb::handle lse, nb::handle dq, nb::handle dk,
                   nb::handle dv) {
  const NumberedShape* of = nullptr;
  if (!IsReady(number, of) || !IsPlain(dout)) return false;
  const tessera_shape& s = of->shape;
  const Reader reader(s);
  tessera_args args = tessera_args_init();
  if (!reader.Read(q, AxesOfQ(s), args.q) || !reader.Read(k, AxesOfK(s), args.k) ||
      !reader.Read(v, AxesOfV(s), args.v) || !reader.Read(o, AxesOfO(s), args.o) ||
      !reader.Read(dout, AxesOfO(s), args.dout) || !reader.Read(dq, AxesOfQ(s), args.dq) ||
      !reader.Read(dk, AxesOfK(s), args.dk) || !reader.Read(dv, AxesOfV(s), args.dv) ||
      !reader.ReadRows(lse, args.lse)) {
    return false;
  }
  CallOnHost(number, {reinterpret_cast<const std::byte*>(operand), static_cast<size_t>(operand_bytes)}, Pass::kBackward,
             args);
  return true;
}

}  // namespace

void AddTorch(nb::module_& m) {
  m.def("torch_set_up", SetUp, nb::arg("tensor"), nb::arg("parameter"), nb::arg("exchange").none());
  m.def("torch_are_plain", ArePlain);
  m.def("torch_forward", TorchForward, nb::arg("number"), nb::arg("operand"), nb::arg("operand_bytes"), nb::arg("q"),
        nb::arg("k"), nb::arg("v"), nb::arg("o"), nb::arg("lse"));
  m.def("torch_backward", TorchBackward, nb::arg("number"), nb::arg("operand"), nb::arg("operand_bytes"),
        nb::arg("dout"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("o"), nb::arg("lse"), nb::arg("dq"),
        nb::arg("dk"), nb::arg("dv"));
}

}  // namespace tessera_python
