// Pages to look at, and the texts of programs with what they take and give.
#include <nanobind/stl/string.h>

#include <string>

#include "native.h"

namespace tessera_python {
namespace {

struct Shown {
  const Attention* attention = nullptr;
  const Plan* plan = nullptr;
};

// Null for None.
Shown ShownOf(nb::handle pair) {
  if (pair.is_none()) return {};
  const auto both = nb::cast<nb::tuple>(pair);
  return {nb::cast<const Attention*>(both[0]), nb::cast<const Plan*>(both[1])};
}

std::string ViewHtml(const Attention& attention, const Plan& plan, const std::string& name, nb::handle other,
                     const std::string& other_name, nb::handle receipt, nb::handle q, nb::handle k) {
  ArrayReader reader;
  const tessera_shape& shape = attention.contract.shape;
  const tessera_tensor q_tensor = reader.Input(q, "q", AxesOfQ(shape));
  const tessera_tensor k_tensor = reader.Input(k, "k", AxesOfK(shape));
  tessera_view_options options = tessera_view_options_init();
  options.name = name.c_str();
  options.attention = attention.handle.get();
  options.plan = plan.handle.get();
  if (const Shown second = ShownOf(other); second.plan != nullptr) {
    options.other_name = other_name.c_str();
    options.other_attention = second.attention->handle.get();
    options.other_plan = second.plan->handle.get();
  }
  if (!receipt.is_none()) options.receipt = nb::cast<const Receipt*>(receipt)->handle.get();
  if (!q.is_none()) options.q = &q_tensor;
  if (!k.is_none()) options.k = &k_tensor;
  char* text = nullptr;
  tessera_error* error = nullptr;
  int status = 0;
  {
    const Unlocked unlocked;
    status = tessera_view_html(&options, &text, &error);
  }
  Check(status, error);
  return TakeText(text);
}

// (name, dtype, shape, data or None)
nb::tuple Described(const tessera_array& array, const std::shared_ptr<void>& owner) {
  nb::list shape;
  for (int64_t i = 0; i < array.rank; ++i) shape.append(array.shape[i]);
  return nb::make_tuple(array.name, array.dtype, nb::tuple(shape),
                        array.data == nullptr ? nb::none() : ToNumpy(array, owner));
}

// Of each program its name and text, its operands with where they come from, and its results.
nb::list ListPrograms(const Programs& programs) {
  const tessera_programs* handle = programs.handle.get();
  tessera_error* error = nullptr;
  nb::list out;
  for (size_t index = 0; index < tessera_programs_count(handle); ++index) {
    nb::list operands;
    for (size_t i = 0; i < tessera_programs_num_operands(handle, index); ++i) {
      const char* source = nullptr;
      tessera_array array = tessera_array_init();
      Check(tessera_programs_operand(handle, index, i, &source, &array, &error), error);
      operands.append(nb::make_tuple(source, Described(array, programs.handle)));
    }
    nb::list results;
    for (size_t i = 0; i < tessera_programs_num_results(handle, index); ++i) {
      tessera_array array = tessera_array_init();
      Check(tessera_programs_result(handle, index, i, &array, &error), error);
      results.append(Described(array, programs.handle));
    }
    out.append(
        nb::make_tuple(tessera_programs_name(handle, index), tessera_programs_text(handle, index), operands, results));
  }
  return out;
}

}  // namespace

void AddView(nb::module_& m) {
  nb::class_<Programs>(m, "Programs").def("list", ListPrograms);
  m.def("view_html", ViewHtml, nb::arg("attention"), nb::arg("plan"), nb::arg("name"), nb::arg("other").none(),
        nb::arg("other_name"), nb::arg("receipt").none(), nb::arg("q").none(), nb::arg("k").none());
}

}  // namespace tessera_python
