// NumPy arrays to tensors of the C interface and back, without a copy.
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "native.h"

namespace tessera_python {
namespace {

std::string ShapeText(const nb::ndarray<nb::ro>& array) {
  std::string out = "[";
  for (size_t i = 0; i < array.ndim(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(array.shape(i));
  return out + "]";
}

std::string ShapeText(const Axes& axes) {
  return "[" + std::to_string(axes.batch) + ", " + std::to_string(axes.heads) + ", " + std::to_string(axes.tokens) +
         ", " + std::to_string(axes.dim) + "]";
}

std::string TypeName(nb::handle object) {
  return nb::cast<std::string>(nb::str(nb::type_name(nb::handle(Py_TYPE(object.ptr())))));
}

std::string DTypeName(nb::handle array) { return nb::cast<std::string>(nb::str(nb::handle(array.attr("dtype")))); }

// Made once and kept for the life of the process.
nb::handle NumpyArrayType() {
  static PyObject* const type = nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
  return type;
}

bool IsNumpy(nb::handle object) { return PyObject_IsInstance(object.ptr(), NumpyArrayType().ptr()) == 1; }

bool IsA(const nb::ndarray<nb::ro>& array, nb::dlpack::dtype_code code, uint8_t bits) {
  return array.dtype() == nb::dlpack::dtype{static_cast<uint8_t>(code), bits, 1};
}

std::string_view Layout(nb::handle array) {
  return nb::cast<bool>(array.attr("flags").attr("writeable")) ? "" : ", and it is read-only";
}

}  // namespace

ArrayReader::ArrayReader() = default;

const nb::ndarray<nb::ro>& ArrayReader::Import(nb::handle array, const char* name, bool is_input, bool& is_bfloat16) {
  is_bfloat16 = false;
  if (!IsNumpy(array)) {
    BadType(std::string(name) + ": a numpy.ndarray expected, got " + TypeName(array) +
            " (tessera.torch and tessera.jax take tensors of theirs)");
  }
  if (Py_TYPE(array.ptr()) != reinterpret_cast<PyTypeObject*>(NumpyArrayType().ptr()) && nb::hasattr(array, "mask")) {
    BadType(std::string(name) + ": a masked array has values that do not count; fill it");
  }
  if (!is_input && !nb::cast<bool>(array.attr("flags").attr("writeable"))) {
    BadValue(std::string(name) + ": an array that can be written to expected, this one is read-only");
  }
  nb::ndarray<nb::ro>& into = kept_[num_kept_];
  if (!nb::try_cast(array, into, false)) {
    // NumPy gives no bfloat16 away: its bits do as well.
    const std::string dtype = DTypeName(array);
    is_bfloat16 = dtype == "bfloat16";
    const nb::object bits = is_bfloat16 ? nb::object(array.attr("view")("uint16")) : nb::borrow(array);
    if (!is_bfloat16 || !nb::try_cast(bits, into, false)) {
      BadType(std::string(name) + ": float32, float16 or bfloat16 in this machine's byte order expected, got " + dtype +
              " with strides " + nb::cast<std::string>(nb::str(nb::handle(array.attr("strides")))) + " bytes" +
              std::string(Layout(array)));
    }
  }
  ++num_kept_;
  return into;
}

tessera_tensor ArrayReader::Tensor(nb::handle object, const char* name, const Axes& axes, bool is_input) {
  tessera_tensor out{};
  if (object.is_none()) return out;  // not given: the engine says whether it is needed
  bool is_bfloat16 = false;
  const nb::ndarray<nb::ro>& array = Import(object, name, is_input, is_bfloat16);
  if (array.ndim() != 4 || static_cast<int64_t>(array.shape(0)) != axes.batch ||
      static_cast<int64_t>(array.shape(1)) != axes.heads || static_cast<int64_t>(array.shape(2)) != axes.tokens ||
      static_cast<int64_t>(array.shape(3)) != axes.dim) {
    const bool is_by_token = array.ndim() == 4 && static_cast<int64_t>(array.shape(1)) == axes.tokens &&
                             static_cast<int64_t>(array.shape(2)) == axes.heads;
    BadValue(std::string(name) + ": shape " + ShapeText(axes) + " expected, as [batch, heads, tokens, dim], got " +
             ShapeText(array) + (is_by_token ? "; with heads and tokens exchanged it fits: see layout=" : ""));
  }
  if (axes.dim > 1 && array.stride(3) != 1) {
    BadValue(std::string(name) + ": the last axis must be contiguous, its stride is " +
             std::to_string(array.stride(3)) + " elements; numpy.ascontiguousarray makes such a copy");
  }
  if (is_bfloat16 || IsA(array, nb::dlpack::dtype_code::UInt, 16)) {
    out.dtype = TESSERA_DTYPE_BF16;
  } else if (IsA(array, nb::dlpack::dtype_code::Float, 32)) {
    out.dtype = TESSERA_DTYPE_F32;
  } else if (IsA(array, nb::dlpack::dtype_code::Float, 16)) {
    out.dtype = TESSERA_DTYPE_F16;
  } else {
    BadType(std::string(name) + ": float32, float16 or bfloat16 expected, got " + DTypeName(object));
  }
  out.data = const_cast<void*>(array.data());  // an input is never written
  out.batch_stride = array.stride(0);
  out.head_stride = array.stride(1);
  out.token_stride = array.stride(2);
  return out;
}

const float* ArrayReader::InputFloats(nb::handle object, const char* name, int64_t count) {
  if (object.is_none()) return nullptr;
  bool is_bfloat16 = false;
  const nb::ndarray<nb::ro>& array = Import(object, name, true, is_bfloat16);
  if (!IsA(array, nb::dlpack::dtype_code::Float, 32)) {
    BadType(std::string(name) + ": float32 expected, got " + DTypeName(object));
  }
  if (static_cast<int64_t>(array.size()) != count || !nb::cast<bool>(object.attr("flags").attr("c_contiguous"))) {
    BadValue(std::string(name) + ": " + std::to_string(count) + " numbers in one dense piece expected, got " +
             ShapeText(array));
  }
  return static_cast<const float*>(array.data());
}

float* ArrayReader::OutputFloats(nb::handle object, const char* name, int64_t count) {
  const float* data = InputFloats(object, name, count);
  if (data != nullptr && !nb::cast<bool>(object.attr("flags").attr("writeable"))) {
    BadValue(std::string(name) + ": an array that can be written to expected, this one is read-only");
  }
  return const_cast<float*>(data);
}

nb::object ToNumpy(const tessera_array& array, const std::shared_ptr<void>& owner) {
  const std::string_view name = array.dtype;
  if (name.empty()) return nb::none();
  nb::dlpack::dtype dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Int), 32, 1};
  if (name == "BOOL") dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::Bool);
  if (name[0] == 'U') dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::UInt);
  if (name[0] == 'F') dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
  dtype.bits = name == "BOOL" ? 8 : static_cast<uint8_t>(std::stoi(std::string(name.substr(1))));
  size_t shape[8] = {};
  if (array.rank > 8) BadValue("an array of more than 8 axes");
  for (int64_t i = 0; i < array.rank; ++i) shape[i] = static_cast<size_t>(array.shape[i]);
  nb::capsule keep(new std::shared_ptr<void>(owner),
                   [](void* kept) noexcept { delete static_cast<std::shared_ptr<void>*>(kept); });
  static const int64_t nothing = 0;  // an empty section has no place
  const void* data = array.data == nullptr ? &nothing : array.data;
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(data, static_cast<size_t>(array.rank), shape, keep, nullptr, dtype));
}

Axes AxesOfQ(const tessera_shape& s) { return {s.batch, s.num_q_heads, s.q_len, s.dim_qk}; }
Axes AxesOfK(const tessera_shape& s) { return {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}; }
Axes AxesOfV(const tessera_shape& s) { return {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}; }
Axes AxesOfO(const tessera_shape& s) { return {s.batch, s.num_q_heads, s.q_len, s.dim_v}; }

}  // namespace tessera_python
