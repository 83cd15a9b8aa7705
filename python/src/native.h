// What the files of the extension module share: handles of the C interface that free themselves, and its errors as
// Python exceptions. The module calls the C interface and decides nothing of its own.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/c_api.h"

namespace tessera_python {

namespace nb = nanobind;

struct Contract {
  std::shared_ptr<tessera_contract> handle;
  tessera_shape shape;
};
struct Engine {
  std::shared_ptr<tessera_engine> handle;
};
struct Attention {
  std::shared_ptr<tessera_attention> handle;
  Contract contract;
};
struct Batch {
  std::shared_ptr<tessera_batch> handle;
};
struct Plan {
  std::shared_ptr<tessera_plan> handle;
};
struct Bound {
  std::shared_ptr<tessera_bound> handle;
  tessera_shape shape;
};
struct Receipt {
  std::shared_ptr<tessera_receipt> handle;
};
struct Programs {
  std::shared_ptr<tessera_programs> handle;
};
struct Export {
  std::shared_ptr<tessera_export> handle;
};

// The engine runs without Python's lock. At the interpreter's end a thread that asks for the lock back is ended by
// Python with an unwinding that may not pass through C++ (before 3.14, which lets such a thread sleep): it sleeps here
// instead.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// Raises tessera.TesseraError with what the error says, and frees it. The receipt, which may be null, goes with it.
[[noreturn]] void Raise(tessera_error* error, const Receipt* receipt = nullptr);
// The error by reference: in Check(f(..., &error), error) a compiler may read the second argument before it calls f.
inline void Check(int status, tessera_error*& error) {
  if (status != 0) Raise(error);
}
// ValueError or TypeError.
[[noreturn]] void BadValue(const std::string& text);
[[noreturn]] void BadType(const std::string& text);

// A text that a C function made for its caller.
std::string TakeText(char* text);

// The arrays of a plan or an export as NumPy arrays that keep `owner` alive; None where the library has none.
nb::object ToNumpy(const tessera_array& array, const std::shared_ptr<void>& owner);

// --- Tensors of a call ----------------------------------------------------------------------------------------------

struct Axes {
  int64_t batch;
  int64_t heads;
  int64_t tokens;
  int64_t dim;
};

// Reads NumPy arrays of one call where they lie, and keeps them until it is done. Shapes and element types are checked
// here, because a pointer says nothing of them; everything else is the engine's to judge.
class ArrayReader {
 public:
  ArrayReader();
  tessera_tensor Input(nb::handle array, const char* name, const Axes& axes) { return Tensor(array, name, axes, true); }
  tessera_tensor Output(nb::handle array, const char* name, const Axes& axes) {
    return Tensor(array, name, axes, false);
  }
  // Dense f32 of `count` numbers, or null for None.
  const float* InputFloats(nb::handle array, const char* name, int64_t count);
  float* OutputFloats(nb::handle array, const char* name, int64_t count);

 private:
  static constexpr size_t kMost = 16;
  tessera_tensor Tensor(nb::handle array, const char* name, const Axes& axes, bool is_input);
  const nb::ndarray<nb::ro>& Import(nb::handle array, const char* name, bool is_input, bool& is_bfloat16);
  nb::ndarray<nb::ro> kept_[kMost];
  size_t num_kept_ = 0;
};

Axes AxesOfQ(const tessera_shape& shape);
Axes AxesOfK(const tessera_shape& shape);
Axes AxesOfV(const tessera_shape& shape);
Axes AxesOfO(const tessera_shape& shape);

// The parts of the module, one file each.
void AddData(nb::module_& m);    // contracts, batches, plans, exports
void AddEngine(nb::module_& m);  // engines, attentions, bound calls, receipts
void AddView(nb::module_& m);    // pages, and the texts of programs
void AddCalls(nb::module_& m);   // calls by number, for frameworks that hold no Python objects
void AddJax(nb::module_& m);     // handlers of XLA's typed FFI
void AddTorch(nb::module_& m);   // the short way of PyTorch's calls

}  // namespace tessera_python
