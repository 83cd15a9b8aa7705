// Handlers of XLA's typed FFI, on the CPU and for CUDA: buffers become tensors, and a call by number does the rest. XLA
// calls them from its own threads, without Python's lock: nothing here may touch Python. On a GPU they launch in the order
// of XLA's stream and return.
#include <exception>
#include <string>

#include "calls.h"
#include "xla_ffi.h"

namespace tessera_python {
namespace {

namespace ffi = xla_ffi;

ffi::Error* Refuse(const ffi::CallFrame* frame, const std::string& text) {
  ffi::ErrorCreateArgs args{sizeof(args), nullptr, text.c_str(), ffi::kInvalidArgument};
  return frame->api->error_create(&args);
}

// XLA asks a handler for its version before it calls it.
bool AnswerMetadata(ffi::CallFrame* frame) {
  ffi::ExtensionBase* extension = frame->extension_start;
  if (extension == nullptr || extension->type != ffi::kExtensionMetadata) return false;
  ffi::Metadata* metadata = reinterpret_cast<ffi::MetadataExtension*>(extension)->metadata;
  metadata->api_version = {sizeof(ffi::ApiVersion), nullptr, ffi::kMajor, ffi::kMinor};
  metadata->traits = 0;
  return true;
}

// Thrown inside a handler, and caught in it.
struct Problem {
  std::string text;
};

enum class Platform { kCpu, kCuda };

class Frame {
 public:
  Frame(const ffi::CallFrame& frame, Platform platform) : frame_(frame), platform_(platform) {
    const ffi::Attrs& attrs = frame.attrs;
    if (attrs.size != 1 || attrs.types[0] != ffi::kScalar) throw Problem{"TSR-A001: one attribute expected"};
    const auto* scalar = static_cast<const ffi::Scalar*>(attrs.attrs[0]);
    if (scalar->dtype != ffi::kS64) throw Problem{"TSR-A001: attention: an int64 expected"};
    number = *static_cast<const int64_t*>(scalar->value);
    const NumberedShape* found = ShapeOfNumber(number);
    if (found == nullptr) throw Problem{"TSR-A001: no attention has this number in this process"};
    shape = found->shape;
    ordinal_ = found->ordinal;
  }

  void Expect(int64_t num_args, int64_t num_rets) const {
    if (frame_.args.size != num_args || frame_.rets.size != num_rets) {
      throw Problem{"TSR-A001: another number of operands or results than this program was made for"};
    }
  }
  int64_t num_args() const { return frame_.args.size; }

  tessera_tensor Arg(int64_t index, const char* name, const Axes& axes) const {
    return Tensor(*static_cast<const ffi::Buffer*>(frame_.args.args[index]), name, axes);
  }
  tessera_tensor Ret(int64_t index, const char* name, const Axes& axes) const {
    return Tensor(*static_cast<const ffi::Buffer*>(frame_.rets.args[index]), name, axes);
  }
  float* ArgFloats(int64_t index, const char* name, int64_t count) const {
    return Floats(*static_cast<const ffi::Buffer*>(frame_.args.args[index]), name, count);
  }
  float* RetFloats(int64_t index, const char* name, int64_t count) const {
    return Floats(*static_cast<const ffi::Buffer*>(frame_.rets.args[index]), name, count);
  }
  // Runs the pass on the plan in that operand.
  CallError Run(Pass pass, int64_t operand_index, const tessera_args& args, void* stream) const {
    const auto& buffer = *static_cast<const ffi::Buffer*>(frame_.args.args[operand_index]);
    if (buffer.rank != 1 || buffer.dtype != ffi::kU8) throw Problem{"TSR-A001: plan: an operand's bytes expected"};
    const std::span operand(static_cast<const std::byte*>(buffer.data), static_cast<size_t>(buffer.dims[0]));
    return platform_ == Platform::kCpu ? CallByNumber(number, operand, pass, args, nullptr)
                                       : CallWithImage(number, operand, pass, args, stream);
  }

  int64_t number = 0;
  tessera_shape shape{};

 private:
  // A dense [batch, heads, tokens, dim]; ranks are compared too, because vmap may add an axis.
  tessera_tensor Tensor(const ffi::Buffer& buffer, const char* name, const Axes& axes) const {
    if (buffer.rank != 4 || buffer.dims[0] != axes.batch || buffer.dims[1] != axes.heads ||
        buffer.dims[2] != axes.tokens || buffer.dims[3] != axes.dim) {
      throw Problem{std::string("TSR-R001: ") + name + " has another shape than the contract's"};
    }
    tessera_tensor out = tessera_tensor_bhtd(buffer.data, axes.heads, axes.tokens, axes.dim);
    if (platform_ == Platform::kCuda) {
      out.memory = TESSERA_MEMORY_GPU;
      out.ordinal = ordinal_;
    }
    out.dtype = buffer.dtype == ffi::kF32    ? TESSERA_DTYPE_F32
                : buffer.dtype == ffi::kBf16 ? TESSERA_DTYPE_BF16
                                             : TESSERA_DTYPE_F16;
    if (buffer.dtype != ffi::kF32 && buffer.dtype != ffi::kBf16 && buffer.dtype != ffi::kF16) {
      throw Problem{std::string("TSR-R001: ") + name + " has an element type that no contract has"};
    }
    return out;
  }

  static float* Floats(const ffi::Buffer& buffer, const char* name, int64_t count) {
    int64_t size = 1;
    for (int64_t i = 0; i < buffer.rank; ++i) size *= buffer.dims[i];
    if (buffer.dtype != ffi::kF32 || size != count) {
      throw Problem{std::string("TSR-R001: ") + name + ": " + std::to_string(count) + " numbers of float32 expected"};
    }
    return static_cast<float*>(buffer.data);
  }

  const ffi::CallFrame& frame_;
  Platform platform_;
  int64_t ordinal_ = 0;
};

// Runs a handler's body; whatever goes wrong in it becomes an error of XLA's.
template <class Body>
ffi::Error* Handle(ffi::CallFrame* frame, Platform platform, Body body) {
  if (AnswerMetadata(frame)) return nullptr;
  if (frame->stage != ffi::kExecute) return nullptr;
  ffi::StreamGetArgs stream{sizeof(stream), nullptr, frame->ctx, nullptr};
  if (platform == Platform::kCuda) {
    if (ffi::Error* error = frame->api->stream_get(&stream)) return error;
  }
  try {
    const CallError problem = body(Frame(*frame, platform), stream.stream);
    return problem.ok() ? nullptr : Refuse(frame, problem.text);
  } catch (const Problem& problem) {
    return Refuse(frame, problem.text);
  } catch (const std::exception& exception) {
    return Refuse(frame, std::string("TSR-R009: ") + exception.what());
  }
}

// q, k, v, plan[, sink_logits] -> o, lse
template <Platform kPlatform>
ffi::Error* Forward(ffi::CallFrame* frame) {
  return Handle(frame, kPlatform, [](const Frame& f, void* stream) {
    const tessera_shape& s = f.shape;
    f.Expect(s.sink_logits != 0 ? 5 : 4, 2);
    tessera_args args = tessera_args_init();
    args.q = f.Arg(0, "q", AxesOfQ(s));
    args.k = f.Arg(1, "k", AxesOfK(s));
    args.v = f.Arg(2, "v", AxesOfV(s));
    if (s.sink_logits != 0) args.sink_logits = f.ArgFloats(4, "sink_logits", s.num_q_heads);
    args.o = f.Ret(0, "o", AxesOfO(s));
    args.lse = f.RetFloats(1, "lse", s.batch * s.num_q_heads * s.q_len);
    return f.Run(Pass::kForward, 3, args, stream);
  });
}

// dout, q, k, v, o, lse, plan[, sink_logits] -> dq, dk, dv[, dsink_logits]
template <Platform kPlatform>
ffi::Error* Backward(ffi::CallFrame* frame) {
  return Handle(frame, kPlatform, [](const Frame& f, void* stream) {
    const tessera_shape& s = f.shape;
    f.Expect(s.sink_logits != 0 ? 8 : 7, s.sink_logits != 0 ? 4 : 3);
    tessera_args args = tessera_args_init();
    args.dout = f.Arg(0, "dout", AxesOfO(s));
    args.q = f.Arg(1, "q", AxesOfQ(s));
    args.k = f.Arg(2, "k", AxesOfK(s));
    args.v = f.Arg(3, "v", AxesOfV(s));
    args.o = f.Arg(4, "o", AxesOfO(s));
    args.lse = f.ArgFloats(5, "lse", s.batch * s.num_q_heads * s.q_len);
    args.dq = f.Ret(0, "dq", AxesOfQ(s));
    args.dk = f.Ret(1, "dk", AxesOfK(s));
    args.dv = f.Ret(2, "dv", AxesOfV(s));
    if (s.sink_logits != 0) {
      args.sink_logits = f.ArgFloats(7, "sink_logits", s.num_q_heads);
      args.dsink_logits = f.RetFloats(3, "dsink_logits", s.num_q_heads);
    }
    return f.Run(Pass::kBackward, 6, args, stream);
  });
}

}  // namespace

void AddJax(nb::module_& m) {
  m.attr("xla_ffi_version") = nb::make_tuple(ffi::kMajor, ffi::kMinor);
  // By XLA's name of the platform, then of the target.
  m.def("xla_ffi_handlers", [] {
    nb::dict cpu;
    cpu["tessera_forward"] = nb::capsule(reinterpret_cast<void*>(&Forward<Platform::kCpu>));
    cpu["tessera_backward"] = nb::capsule(reinterpret_cast<void*>(&Backward<Platform::kCpu>));
    nb::dict cuda;
    cuda["tessera_forward"] = nb::capsule(reinterpret_cast<void*>(&Forward<Platform::kCuda>));
    cuda["tessera_backward"] = nb::capsule(reinterpret_cast<void*>(&Backward<Platform::kCuda>));
    nb::dict out;
    out["cpu"] = cpu;
    out["CUDA"] = cuda;
    return out;
  });
}

}  // namespace tessera_python
