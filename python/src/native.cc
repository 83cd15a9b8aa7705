// The module, its errors and its arrays.
#include "native.h"

#include <nanobind/stl/string.h>

namespace tessera_python {

void Raise(tessera_error* error, const Receipt* receipt) {
  nb::list violations;
  for (size_t i = 0; i < tessera_error_num_violations(error); ++i) {
    violations.append(
        nb::make_tuple(tessera_error_violation_field(error, i), tessera_error_violation_expected(error, i)));
  }
  nb::object raised = nb::module_::import_("tessera._errors")
                          .attr("TesseraError")(tessera_error_text(error), tessera_error_code(error),
                                                tessera_error_where(error), violations);
  tessera_error_free(error);
  if (receipt != nullptr && receipt->handle) {
    raised.attr("receipt") = nb::module_::import_("tessera._receipt").attr("Receipt")(*receipt);
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  throw nb::python_error();
}

void BadValue(const std::string& text) { throw nb::value_error(text.c_str()); }
void BadType(const std::string& text) { throw nb::type_error(text.c_str()); }

std::string TakeText(char* text) {
  std::string copy = text;
  tessera_string_free(text);
  return copy;
}

}  // namespace tessera_python

NB_MODULE(_native, m) {
  using namespace tessera_python;  // NOLINT
  // Objects may outlive the interpreter in a program's last moments; that is no fault of the program's.
  nb::set_leak_warnings(false);
  m.def("version", [] { return tessera_version(); });
  m.def("abi_version", [] { return tessera_abi_version(); });
  AddData(m);
  AddView(m);
  AddEngine(m);
  AddCalls(m);
  AddJax(m);
  AddTorch(m);
}
