// Engines, attentions, bound calls and receipts.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "native.h"

namespace tessera_python {
namespace {

// Options given as a dict, whose texts must outlive the C struct that points to them.
class OptionTexts {
 public:
  explicit OptionTexts(const nb::dict& given) : given_(given) {}

  const char* Text(const char* name) {
    if (!given_.contains(name)) return nullptr;
    return Add(name, given_[name]);
  }
  int64_t Number(const char* name) {
    int64_t out = 0;
    if (given_.contains(name) && !nb::try_cast(given_[name], out, false)) {
      BadType(std::string(name) + ": an int of 64 bits expected");
    }
    return out;
  }
  std::vector<const char*> List(const char* name) {
    std::vector<const char*> out;
    if (!given_.contains(name)) return out;
    for (nb::handle item : given_[name]) {
      out.push_back(Add(name, item));
    }
    return out;
  }

 private:
  const char* Add(const char* name, nb::handle item) {
    std::string text;
    if (!nb::try_cast(item, text, false)) BadType(std::string(name) + ": text expected");
    texts_.push_back(std::move(text));
    return texts_.back().c_str();
  }

  const nb::dict& given_;
  std::deque<std::string> texts_;  // what is in it stays where it is
};

// None: from the environment.
Engine NewEngine(nb::handle given) {
  tessera_engine* engine = nullptr;
  tessera_error* error = nullptr;
  if (given.is_none()) {
    Check(tessera_engine_new(nullptr, &engine, &error), error);
  } else {
    const auto dict = nb::cast<nb::dict>(given);
    OptionTexts texts(dict);
    tessera_engine_options options = tessera_engine_options_init();
    options.lane = texts.Text("lane");
    options.isa = texts.Text("isa");
    options.machine_isa = texts.Text("machine_isa");
    options.plugin = texts.Text("plugin");
    options.ledger = texts.Text("ledger");
    options.xla_folder = texts.Text("xla_folder");
    options.xla_flags = texts.Text("xla_flags");
    options.max_prepared = texts.Number("max_prepared");
    Check(tessera_engine_new(&options, &engine, &error), error);
  }
  return {{engine, tessera_engine_free}};
}

// The C struct of a dict, and what it points to.
class AttentionOptions {
 public:
  explicit AttentionOptions(const nb::dict& given) : texts_(given) {
    options.lane = texts_.Text("lane");
    options.isa = texts_.Text("isa");
    exclude_ = texts_.List("exclude");
    options.exclude = exclude_.data();
    options.num_exclude = exclude_.size();
    options.strict = texts_.Number("strict");
    options.passes = texts_.Number("passes");
    options.threads = texts_.Number("threads");
    options.memory = texts_.Number("memory");
    options.ordinal = texts_.Number("ordinal");
    options.plugin = texts_.Text("plugin");
    options.device = texts_.Number("device");
    options.ledger = texts_.Text("ledger");
    options.experimental = texts_.Number("experimental");
    options.tile_q = texts_.Number("tile_q");
    options.tile_kv = texts_.Number("tile_kv");
    options.widen_class = texts_.Number("widen_class");
    options.verify_stages = texts_.Number("verify_stages");
    disable_ = texts_.List("disable");
    options.disable = disable_.data();
    options.num_disable = disable_.size();
  }
  tessera_attention_options options = tessera_attention_options_init();

 private:
  OptionTexts texts_;
  std::vector<const char*> exclude_;
  std::vector<const char*> disable_;
};

Attention NewAttention(const Engine& engine, const Contract& contract, const std::string& target,
                       const nb::dict& given) {
  const AttentionOptions read(given);
  tessera_attention* attention = nullptr;
  tessera_error* error = nullptr;
  int status = 0;
  {
    const Unlocked unlocked;
    status = tessera_attention_new(engine.handle.get(), contract.handle.get(), target.c_str(), &read.options,
                                   &attention, &error);
  }
  Check(status, error);
  return {{attention, tessera_attention_free}, contract};
}

std::string AttentionJson(const Attention& attention) {
  char* text = nullptr;
  tessera_error* error = nullptr;
  Check(tessera_attention_json(attention.handle.get(), &text, &error), error);
  return TakeText(text);
}

Plan MakePlan(const Attention& attention, const Batch& batch, nb::handle q, nb::handle k) {
  ArrayReader reader;
  const tessera_shape& shape = attention.contract.shape;
  const tessera_tensor q_tensor = reader.Input(q, "q", AxesOfQ(shape));
  const tessera_tensor k_tensor = reader.Input(k, "k", AxesOfK(shape));
  tessera_plan* plan = nullptr;
  tessera_error* error = nullptr;
  int status = 0;
  {
    const Unlocked unlocked;
    status = tessera_attention_plan(attention.handle.get(), batch.handle.get(), q.is_none() ? nullptr : &q_tensor,
                                    k.is_none() ? nullptr : &k_tensor, &plan, &error);
  }
  Check(status, error);
  return {{plan, tessera_plan_free}};
}

// The programs of this attention's lane for one batch, as text, with what they take.
Programs Lower(const Engine& engine, const Contract& contract, const std::string& target, const nb::dict& given,
               const Batch& batch, nb::handle q, nb::handle k) {
  const AttentionOptions read(given);
  ArrayReader reader;
  const tessera_tensor q_tensor = reader.Input(q, "q", AxesOfQ(contract.shape));
  const tessera_tensor k_tensor = reader.Input(k, "k", AxesOfK(contract.shape));
  tessera_compile_request request = tessera_compile_request_init();
  request.contract = contract.handle.get();
  request.batch = batch.handle.get();
  request.target = target.c_str();
  request.options = &read.options;
  if (!q.is_none()) request.q = &q_tensor;
  if (!k.is_none()) request.k = &k_tensor;
  tessera_programs* programs = nullptr;
  tessera_error* error = nullptr;
  int status = 0;
  {
    const Unlocked unlocked;
    status = tessera_lower(engine.handle.get(), &request, &programs, &error);
  }
  Check(status, error);
  return {{programs, tessera_programs_free}};
}

Bound Bind(const Attention& attention, const Plan& plan) {
  tessera_bound* bound = nullptr;
  tessera_error* error = nullptr;
  int status = 0;
  {
    const Unlocked unlocked;
    status = tessera_attention_bind(attention.handle.get(), plan.handle.get(), &bound, &error);
  }
  Check(status, error);
  return {{bound, tessera_bound_free}, attention.contract.shape};
}

using Pass = int (*)(const tessera_bound*, const tessera_args*, const tessera_call_options*, tessera_receipt**,
                     tessera_error**);

// `wants`: 0 nothing beside the outputs, 1 a receipt, 2 a receipt with digests.
nb::object Call(Pass pass, const Bound& bound, const tessera_args& args, int64_t wants) {
  tessera_call_options call = tessera_call_options_init();
  call.digests = wants == 2 ? 1 : 0;
  call.input_source = "numpy";
  tessera_receipt* receipt = nullptr;
  tessera_error* error = nullptr;
  int status = 0;
  {
    const Unlocked unlocked;
    status = pass(bound.handle.get(), &args, wants == 0 ? nullptr : &call, wants == 0 ? nullptr : &receipt, &error);
  }
  const Receipt made{{receipt, tessera_receipt_free}};
  if (status != 0) Raise(error, &made);
  return wants == 0 ? nb::none() : nb::cast(made);
}

struct Given {
  nb::handle q, k, v, sink_logits, o, lse, row_max;
};

tessera_args ForwardArgs(ArrayReader& reader, const tessera_shape& s, const Given& given) {
  const int64_t rows = s.batch * s.num_q_heads * s.q_len;
  tessera_args args = tessera_args_init();
  args.q = reader.Input(given.q, "q", AxesOfQ(s));
  args.k = reader.Input(given.k, "k", AxesOfK(s));
  args.v = reader.Input(given.v, "v", AxesOfV(s));
  args.sink_logits = reader.InputFloats(given.sink_logits, "sink_logits", s.num_q_heads);
  args.o = reader.Output(given.o, "o", AxesOfO(s));
  args.lse = reader.OutputFloats(given.lse, "lse", rows);
  args.row_max = reader.OutputFloats(given.row_max, "row_max", rows);
  return args;
}

tessera_args BackwardArgs(ArrayReader& reader, const tessera_shape& s, const nb::dict& given) {
  const int64_t rows = s.batch * s.num_q_heads * s.q_len;
  const auto of = [&](const char* name) -> nb::object {
    return given.contains(name) ? nb::object(given[name]) : nb::none();
  };
  tessera_args args = tessera_args_init();
  args.q = reader.Input(of("q"), "q", AxesOfQ(s));
  args.k = reader.Input(of("k"), "k", AxesOfK(s));
  args.v = reader.Input(of("v"), "v", AxesOfV(s));
  args.dout = reader.Input(of("dout"), "dout", AxesOfO(s));
  args.o = reader.Input(of("o"), "o", AxesOfO(s));
  args.sink_logits = reader.InputFloats(of("sink_logits"), "sink_logits", s.num_q_heads);
  args.lse = const_cast<float*>(reader.InputFloats(of("lse"), "lse", rows));  // a backward only reads it
  args.delta = reader.InputFloats(of("delta"), "delta", rows);
  args.dq = reader.Output(of("dq"), "dq", AxesOfQ(s));
  args.dk = reader.Output(of("dk"), "dk", AxesOfK(s));
  args.dv = reader.Output(of("dv"), "dv", AxesOfV(s));
  args.dsink_logits = reader.OutputFloats(of("dsink_logits"), "dsink_logits", s.num_q_heads);
  return args;
}

nb::object Forward(const Bound& bound, nb::handle q, nb::handle k, nb::handle v, nb::handle sink_logits, nb::handle o,
                   nb::handle lse, nb::handle row_max, int64_t wants) {
  ArrayReader reader;
  const tessera_args args = ForwardArgs(reader, bound.shape, {q, k, v, sink_logits, o, lse, row_max});
  return Call(tessera_bound_forward, bound, args, wants);
}

nb::object Backward(const Bound& bound, const nb::dict& given, int64_t wants) {
  ArrayReader reader;
  const tessera_args args = BackwardArgs(reader, bound.shape, given);
  return Call(tessera_bound_backward, bound, args, wants);
}

// For script/bench python, whose figures are what Python adds to this: nanoseconds of one bare call on a backward's
// arrays, of the forward alone or of one and the backward after it, as the mean of `repeat`.
double TimeBare(const Bound& bound, const nb::dict& given, bool with_backward, int64_t repeat) {
  ArrayReader reader;
  ArrayReader outputs;  // of the forward, which are inputs of the backward
  const tessera_args backward = BackwardArgs(reader, bound.shape, given);
  tessera_args forward = tessera_args_init();
  forward.q = backward.q;
  forward.k = backward.k;
  forward.v = backward.v;
  forward.o = outputs.Output(given["o"], "o", AxesOfO(bound.shape));
  forward.lse =
      outputs.OutputFloats(given["lse"], "lse", bound.shape.batch * bound.shape.num_q_heads * bound.shape.q_len);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeat; ++i) {
    tessera_error* error = nullptr;
    Check(tessera_bound_forward(bound.handle.get(), &forward, nullptr, nullptr, &error), error);
    if (with_backward) Check(tessera_bound_backward(bound.handle.get(), &backward, nullptr, nullptr, &error), error);
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / static_cast<double>(repeat);
}

}  // namespace

void AddEngine(nb::module_& m) {
  nb::class_<Receipt>(m, "Receipt")
      .def_prop_ro("ok", [](const Receipt& r) { return tessera_receipt_ok(r.handle.get()) == 1; })
      .def_prop_ro("json", [](const Receipt& r) { return tessera_receipt_json(r.handle.get()); })
      .def_prop_ro("line", [](const Receipt& r) { return tessera_receipt_line(r.handle.get()); });

  nb::class_<Engine>(m, "Engine");
  m.def("new_engine", NewEngine, nb::arg("options").none());

  nb::class_<Attention>(m, "Attention")
      .def_prop_ro("lane", [](const Attention& a) { return tessera_attention_lane(a.handle.get()); })
      .def_prop_ro("key", [](const Attention& a) { return tessera_attention_key(a.handle.get()); })
      .def("json", AttentionJson)
      .def("check",
           [](const Attention& a) {
             tessera_error* error = nullptr;
             Check(tessera_attention_check(a.handle.get(), &error), error);
           })
      .def("plan", MakePlan, nb::arg("batch"), nb::arg("q").none(), nb::arg("k").none())
      .def("bind", Bind, nb::arg("plan"));
  m.def("lower", Lower, nb::arg("engine"), nb::arg("contract"), nb::arg("target"), nb::arg("options"), nb::arg("batch"),
        nb::arg("q").none(), nb::arg("k").none());
  m.def("new_attention", NewAttention, nb::arg("engine"), nb::arg("contract"), nb::arg("target"), nb::arg("options"));

  nb::class_<Bound>(m, "Bound")
      .def_prop_ro("lane", [](const Bound& b) { return tessera_bound_lane(b.handle.get()); })
      .def_prop_ro("kernel", [](const Bound& b) { return tessera_bound_kernel(b.handle.get()); })
      .def_prop_ro("isa", [](const Bound& b) { return tessera_bound_isa(b.handle.get()); })
      .def_prop_ro("workspace_bytes", [](const Bound& b) { return tessera_bound_workspace_bytes(b.handle.get()); })
      .def("forward", Forward, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::arg("sink_logits").none(), nb::arg("o").none(), nb::arg("lse").none(), nb::arg("row_max").none(),
           nb::arg("wants"))
      .def("time_bare", TimeBare)
      .def("backward", Backward, nb::arg("arrays"), nb::arg("wants"));
}

}  // namespace tessera_python
