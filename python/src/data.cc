// Contracts, batches, plans and exports.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "native.h"

namespace tessera_python {
namespace {

using Ints = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<const int64_t, nb::c_contig, nb::ndim<1>, nb::device::cpu>;

Contract ParseContract(const std::string& text, const std::optional<std::string>& base_dir) {
  tessera_contract* contract = nullptr;
  tessera_error* error = nullptr;
  Check(tessera_contract_parse(text.c_str(), base_dir ? base_dir->c_str() : nullptr, &contract, &error), error);
  Contract out{{contract, tessera_contract_free}, tessera_shape_init()};
  Check(tessera_contract_shape(contract, &out.shape, &error), error);
  return out;
}

std::string ContractJson(const Contract& contract) {
  char* text = nullptr;
  tessera_error* error = nullptr;
  Check(tessera_contract_json(contract.handle.get(), &text, &error), error);
  return TakeText(text);
}

nb::tuple ShapeOf(const Contract& contract) {
  const tessera_shape& s = contract.shape;
  return nb::make_tuple(s.batch, s.q_len, s.kv_len, s.num_q_heads, s.num_kv_heads, s.dim_qk, s.dim_v, s.dtype,
                        s.sink_logits != 0);
}

Batch NewBatch() {
  tessera_batch* batch = nullptr;
  tessera_error* error = nullptr;
  Check(tessera_batch_new(&batch, &error), error);
  return {{batch, tessera_batch_free}};
}

Batch ParseBatch(const std::string& json) {
  tessera_batch* batch = nullptr;
  tessera_error* error = nullptr;
  Check(tessera_batch_parse(json.c_str(), &batch, &error), error);
  return {{batch, tessera_batch_free}};
}

void SetDocIds(Batch& batch, int64_t side, const Ints& ids) {
  if (ids.ndim() != 2) BadValue("doc_ids: [rows, tokens] expected, got " + std::to_string(ids.ndim()) + " axes");
  tessera_error* error = nullptr;
  Check(tessera_batch_set_doc_ids(batch.handle.get(), side, ids.data(), static_cast<int64_t>(ids.shape(0)),
                                  static_cast<int64_t>(ids.shape(1)), &error),
        error);
}

using SetRows = int (*)(tessera_batch*, int64_t, const int32_t*, const int64_t*, int64_t, tessera_error**);
template <SetRows kSet>
void SetDocRows(Batch& batch, int64_t side, const Ints& numbers, const Counts& counts) {
  // The counts are the caller's word in C; here the array's own size is known.
  int64_t sum = 0;
  for (size_t i = 0; i < counts.shape(0); ++i) {
    if (counts.data()[i] < 0 || counts.data()[i] > static_cast<int64_t>(numbers.size()))
      BadValue("counts out of range");
    sum += counts.data()[i];
  }
  if (sum != static_cast<int64_t>(numbers.size())) BadValue("counts do not add up to the numbers given");
  tessera_error* error = nullptr;
  Check(kSet(batch.handle.get(), side, numbers.data(), counts.data(), static_cast<int64_t>(counts.shape(0)), &error),
        error);
}

void SetValidTokens(Batch& batch, int64_t side, const Ints& tokens) {
  tessera_error* error = nullptr;
  Check(tessera_batch_set_valid_tokens(batch.handle.get(), side, tokens.data(), static_cast<int64_t>(tokens.size()),
                                       &error),
        error);
}

void SetValidSlots(Batch& batch, const Ints& slots, int64_t base_block_tokens) {
  tessera_error* error = nullptr;
  Check(tessera_batch_set_valid_slots(batch.handle.get(), slots.data(), static_cast<int64_t>(slots.size()),
                                      base_block_tokens, &error),
        error);
}

void SetPicks(Batch& batch, const Ints& blocks, int64_t block_tokens) {
  int64_t shape[8] = {};
  if (blocks.ndim() > 8) BadValue("picks: too many axes");
  for (size_t i = 0; i < blocks.ndim(); ++i) shape[i] = static_cast<int64_t>(blocks.shape(i));
  tessera_error* error = nullptr;
  Check(tessera_batch_set_picks(batch.handle.get(), blocks.data(), shape, static_cast<int64_t>(blocks.ndim()),
                                block_tokens, &error),
        error);
}

Plan LoadPlan(const Contract& contract, const nb::bytes& bytes) {
  tessera_plan* plan = nullptr;
  tessera_error* error = nullptr;
  Check(tessera_plan_load(contract.handle.get(), bytes.c_str(), bytes.size(), &plan, &error), error);
  return {{plan, tessera_plan_free}};
}

nb::object PlanBytes(const Plan& plan) {
  size_t num_bytes = 0;
  const void* bytes = tessera_plan_bytes(plan.handle.get(), &num_bytes);
  const auto length = static_cast<int64_t>(num_bytes);
  tessera_array array = tessera_array_init();
  array.dtype = "U8";
  array.shape = &length;
  array.rank = 1;
  array.data = bytes;
  return ToNumpy(array, plan.handle);
}

nb::dict PlanArrays(const Plan& plan) {
  nb::dict out;
  tessera_error* error = nullptr;
  for (size_t i = 0; i < tessera_plan_num_arrays(plan.handle.get()); ++i) {
    tessera_array array = tessera_array_init();
    Check(tessera_plan_array(plan.handle.get(), i, &array, &error), error);
    out[array.name] = ToNumpy(array, plan.handle);
  }
  return out;
}

nb::tuple PlanTiles(const Plan& plan, int64_t direction) {
  tessera_tile_counts counts = tessera_tile_counts_init();
  tessera_error* error = nullptr;
  Check(tessera_plan_tile_counts(plan.handle.get(), direction, &counts, &error), error);
  return nb::make_tuple(counts.empty, counts.partial, counts.full);
}

std::string PlanJson(const Plan& plan) {
  char* text = nullptr;
  tessera_error* error = nullptr;
  Check(tessera_plan_json(plan.handle.get(), &text, &error), error);
  return TakeText(text);
}

Export NewExport(const Contract& contract, const Batch& batch, const std::string& library, const nb::dict& given) {
  tessera_export_options options = tessera_export_options_init();
  options.library = library.c_str();
  const auto number = [&](const char* name, int64_t& into) {
    if (given.contains(name)) into = nb::cast<int64_t>(given[name]);
  };
  number("tile_q", options.tile_q);
  number("tile_kv", options.tile_kv);
  number("direction", options.direction);
  number("store_tiles", options.store_tiles);
  number("segments", options.segments);
  number("fixed_shapes", options.fixed_shapes);
  number("widen_class", options.widen_class);
  number("head_shards", options.head_shards);
  number("q_shards", options.q_shards);
  number("kv_shards", options.kv_shards);
  number("keep_empty", options.keep_empty);
  number("dynamic_grid", options.dynamic_grid);
  number("set_row", options.set_row);
  number("row", options.row);
  tessera_export* exported = nullptr;
  tessera_error* error = nullptr;
  int status = 0;
  {
    const Unlocked unlocked;
    status = tessera_export_new(contract.handle.get(), batch.handle.get(), &options, &exported, &error);
  }
  Check(status, error);
  return {{exported, tessera_export_free}};
}

nb::dict ExportArrays(const Export& exported) {
  nb::dict out;
  tessera_error* error = nullptr;
  for (size_t i = 0; i < tessera_export_num_arrays(exported.handle.get()); ++i) {
    tessera_array array = tessera_array_init();
    Check(tessera_export_array(exported.handle.get(), i, &array, &error), error);
    out[array.name] = ToNumpy(array, exported.handle);
  }
  return out;
}

}  // namespace

void AddData(nb::module_& m) {
  nb::class_<Contract>(m, "Contract")
      .def_prop_ro("key", [](const Contract& c) { return tessera_contract_key(c.handle.get()); })
      .def_prop_ro("text", [](const Contract& c) { return tessera_contract_text(c.handle.get()); })
      .def_prop_ro("shape", ShapeOf)
      .def("json", ContractJson);
  m.def("parse_contract", ParseContract, nb::arg("text"), nb::arg("base_dir").none());

  nb::class_<Batch>(m, "Batch")
      .def("set_doc_ids", SetDocIds, nb::arg("side"), nb::arg("ids").noconvert())
      .def("set_doc_lengths", SetDocRows<tessera_batch_set_doc_lengths>, nb::arg("side"),
           nb::arg("numbers").noconvert(), nb::arg("counts").noconvert())
      .def("set_cu_seqlens", SetDocRows<tessera_batch_set_cu_seqlens>, nb::arg("side"), nb::arg("numbers").noconvert(),
           nb::arg("counts").noconvert())
      .def("set_valid_tokens", SetValidTokens, nb::arg("side"), nb::arg("tokens").noconvert())
      .def("set_valid_slots", SetValidSlots, nb::arg("slots").noconvert(), nb::arg("base_block_tokens"))
      .def("set_picks", SetPicks, nb::arg("blocks").noconvert(), nb::arg("block_tokens"));
  m.def("new_batch", NewBatch);
  m.def("parse_batch", ParseBatch, nb::arg("json"));

  nb::class_<Plan>(m, "Plan")
      .def_prop_ro("fingerprint", [](const Plan& p) { return tessera_plan_fingerprint(p.handle.get()); })
      .def_prop_ro("class_key", [](const Plan& p) { return tessera_plan_class_key(p.handle.get()); })
      .def_prop_ro("mask_digest", [](const Plan& p) { return tessera_plan_mask_digest(p.handle.get()); })
      .def_prop_ro("class_bytes", [](const Plan& p) { return tessera_plan_class_bytes(p.handle.get()); })
      .def("bytes", PlanBytes)
      .def("arrays", PlanArrays)
      .def("tiles", PlanTiles, nb::arg("direction"))
      .def("json", PlanJson);
  m.def("load_plan", LoadPlan, nb::arg("contract"), nb::arg("bytes"));

  nb::class_<Export>(m, "Export").def("arrays", ExportArrays);
  m.def("new_export", NewExport, nb::arg("contract"), nb::arg("batch"), nb::arg("library"), nb::arg("options"));
}

}  // namespace tessera_python
