#include "lanes/bridge/interpreter.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <clocale>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "io/document.h"
#include "lanes/bridge/find_python.h"
#include "lanes/bridge/script_text.h"

namespace tessera::lanes::bridge {
namespace {

struct Object;  // of Python's, never looked into

// What is used of the stable ABI, by name.
struct Api {
  int (*py_is_initialized)() = nullptr;
  int (*py_bytes_main)(int, char**) = nullptr;
  int (*py_gil_state_ensure)() = nullptr;
  void (*py_gil_state_release)(int) = nullptr;
  Object* (*py_compile_string)(const char*, const char*, int) = nullptr;
  Object* (*py_eval_eval_code)(Object*, Object*, Object*) = nullptr;
  Object* (*py_eval_get_builtins)() = nullptr;
  Object* (*py_dict_new)() = nullptr;
  int (*py_dict_set_item_string)(Object*, const char*, Object*) = nullptr;
  Object* (*py_dict_get_item_string)(Object*, const char*) = nullptr;
  Object* (*py_unicode_from_string_and_size)(const char*, intptr_t) = nullptr;
  const char* (*py_unicode_as_utf8_and_size)(Object*, intptr_t*) = nullptr;
  Object* (*py_object_call_function_obj_args)(Object*, ...) = nullptr;
  Object* (*py_object_str)(Object*) = nullptr;
  void (*py_err_fetch)(Object**, Object**, Object**) = nullptr;
  void (*py_err_clear)() = nullptr;
  void (*py_dec_ref)(Object*) = nullptr;
};
constexpr int kFileInput = 257;  // Py_file_input

template <class Function>
void Look(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) missing += std::string(missing.empty() ? "" : ", ") + name;
}

// The names that are not there; empty when all are.
std::string Load(void* library, Api& api) {
  std::string missing;
  Look(library, "Py_IsInitialized", api.py_is_initialized, missing);
  Look(library, "Py_BytesMain", api.py_bytes_main, missing);
  Look(library, "PyGILState_Ensure", api.py_gil_state_ensure, missing);
  Look(library, "PyGILState_Release", api.py_gil_state_release, missing);
  Look(library, "Py_CompileString", api.py_compile_string, missing);
  Look(library, "PyEval_EvalCode", api.py_eval_eval_code, missing);
  Look(library, "PyEval_GetBuiltins", api.py_eval_get_builtins, missing);
  Look(library, "PyDict_New", api.py_dict_new, missing);
  Look(library, "PyDict_SetItemString", api.py_dict_set_item_string, missing);
  Look(library, "PyDict_GetItemString", api.py_dict_get_item_string, missing);
  Look(library, "PyUnicode_FromStringAndSize", api.py_unicode_from_string_and_size, missing);
  Look(library, "PyUnicode_AsUTF8AndSize", api.py_unicode_as_utf8_and_size, missing);
  Look(library, "PyObject_CallFunctionObjArgs", api.py_object_call_function_obj_args, missing);
  Look(library, "PyObject_Str", api.py_object_str, missing);
  Look(library, "PyErr_Fetch", api.py_err_fetch, missing);
  Look(library, "PyErr_Clear", api.py_err_clear, missing);
  Look(library, "Py_DecRef", api.py_dec_ref, missing);
  return missing;
}

// Python's lock, for as long as this lives.
class Hold {
 public:
  explicit Hold(const Api& api) : api_(api), state_(api.py_gil_state_ensure()) {}
  ~Hold() { api_.py_gil_state_release(state_); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  const Api& api_;
  int state_;
};

// A reference that is given back; only while the lock is held.
class Ref {
 public:
  Ref(const Api& api, Object* object) : api_(api), object_(object) {}
  ~Ref() {
    if (object_ != nullptr) api_.py_dec_ref(object_);
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  Object* get() const { return object_; }
  Object* Keep() { return std::exchange(object_, nullptr); }

 private:
  const Api& api_;
  Object* object_;
};

std::string TextOf(const Api& api, Object* text) {
  intptr_t size = 0;
  const char* bytes = text == nullptr ? nullptr : api.py_unicode_as_utf8_and_size(text, &size);
  if (bytes == nullptr) api.py_err_clear();
  return bytes == nullptr ? std::string() : std::string(bytes, static_cast<size_t>(size));
}

// Takes the exception that is set, as text.
std::string TakeException(const Api& api) {
  Object* type = nullptr;
  Object* value = nullptr;
  Object* trace = nullptr;
  api.py_err_fetch(&type, &value, &trace);
  const Ref of_type(api, type);
  const Ref of_value(api, value);
  const Ref of_trace(api, trace);
  if (value == nullptr) return "an exception without a text";
  const Ref text(api, api.py_object_str(value));
  return TextOf(api, text.get());
}

class LoadedInterpreter final : public Interpreter {
 public:
  LoadedInterpreter(const Api& api, std::string how, std::string library) : api_(api), process_(getpid()) {
    use_.interpreter = std::move(how);
    use_.library = std::move(library);
  }

  // Runs bridge.py; an exception's text where it fails.
  std::string Import() {
    const Hold lock(api_);
    Ref globals(api_, api_.py_dict_new());
    const Ref name(api_, api_.py_unicode_from_string_and_size("tessera_bridge", 14));
    const Ref code(api_, api_.py_compile_string(kBridgePy, "tessera_bridge.py", kFileInput));
    if (globals.get() == nullptr || name.get() == nullptr || code.get() == nullptr) return TakeException(api_);
    api_.py_dict_set_item_string(globals.get(), "__builtins__", api_.py_eval_get_builtins());
    api_.py_dict_set_item_string(globals.get(), "__name__", name.get());
    const Ref done(api_, api_.py_eval_eval_code(code.get(), globals.get(), globals.get()));
    if (done.get() == nullptr) return TakeException(api_);
    answer_ = api_.py_dict_get_item_string(globals.get(), "answer");
    globals.Keep();  // for as long as the process
    return {};
  }

  Result<std::string> Call(std::string_view request) const override {
    if (!IsThere()) {
      return Fail(ErrorCode::kBridgeFailed, "Python is not there any more: it ended, or this process was forked",
                  "call_jax");
    }
    const Hold lock(api_);
    const Ref text(api_, api_.py_unicode_from_string_and_size(request.data(), static_cast<intptr_t>(request.size())));
    const Ref answer(api_, text.get() == nullptr ? nullptr
                                                 : api_.py_object_call_function_obj_args(answer_, text.get(),
                                                                                         static_cast<void*>(nullptr)));
    if (answer.get() == nullptr) return Fail(ErrorCode::kBridgeFailed, TakeException(api_), "call_jax");
    return TextOf(api_, answer.get());
  }

  bool IsThere() const override { return getpid() == process_ && api_.py_is_initialized() != 0; }
  const CrossingUse& use() const override { return use_; }
  void SetRuntime(std::string runtime) { use_.runtime = std::move(runtime); }

 private:
  const Api api_;
  const pid_t process_;
  Object* answer_ = nullptr;  // the function of bridge.py
  CrossingUse use_;
};

// The thread that the interpreter was started on. Never destroyed: a thread waits on it for ever.
struct Parked {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> is_ready = false;
  bool has_ended = false;
};
Parked& TheParked() {
  static Parked& parked = *new Parked();
  return parked;
}

// Called out of Python, which has let go of its lock for it.
void Park() {
  Parked& parked = TheParked();
  std::unique_lock<std::mutex> lock(parked.mutex);
  parked.is_ready = true;
  parked.changed.notify_all();
  parked.changed.wait(lock, [] { return false; });
}

// Keeps what a program has said about signals and the locale through a start that would change both.
class KeepsHost {
 public:
  KeepsHost() : handlers_(NSIG), locale_(setlocale(LC_CTYPE, nullptr)) {
    for (int number = 1; number < NSIG; ++number) {
      if (sigaction(number, nullptr, &handlers_[static_cast<size_t>(number)]) != 0) {
        handlers_[static_cast<size_t>(number)].sa_handler = SIG_ERR;
      }
    }
  }
  ~KeepsHost() {
    for (int number = 1; number < NSIG; ++number) {
      const struct sigaction& handler = handlers_[static_cast<size_t>(number)];
      if (handler.sa_handler != SIG_ERR) sigaction(number, &handler, nullptr);
    }
    setlocale(LC_CTYPE, locale_.c_str());
  }
  KeepsHost(const KeepsHost&) = delete;
  KeepsHost& operator=(const KeepsHost&) = delete;

 private:
  std::vector<struct sigaction> handlers_;
  std::string locale_;
};

// Whether the interpreter came as far as Park.
bool Start(const Api& api, const std::string& program) {
  Parked& parked = TheParked();
  // Signals are for the host's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([main = api.py_bytes_main, program, &parked] {
    std::string path = program;
    std::string isolated = "-I";
    std::string command = "-c";
    std::string code = fmt::format("import ctypes; ctypes.CFUNCTYPE(None)({})()", reinterpret_cast<uintptr_t>(&Park));
    char* arguments[] = {path.data(), isolated.data(), command.data(), code.data(), nullptr};
    main(4, arguments);
    const std::lock_guard<std::mutex> lock(parked.mutex);
    parked.has_ended = true;
    parked.changed.notify_all();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock<std::mutex> lock(parked.mutex);
  parked.changed.wait(lock, [&] { return parked.is_ready || parked.has_ended; });
  return parked.is_ready;
}

std::string VersionsProblem(const std::string& python, const std::string& jax) {
  if (!IsAtLeast(python, 3, 11)) return fmt::format("Python {}, and 3.11 is the oldest", python);
  if (!IsAtLeast(jax, 0, 5)) return fmt::format("JAX {}, and 0.5 is the oldest", jax);
  return {};
}

OpenedInterpreter No(ReasonCode reason, std::string detail) {
  return {nullptr, Decision::No(reason, std::move(detail))};
}

// Runs bridge.py in an interpreter that is there, and looks at the versions.
OpenedInterpreter ImportInto(LoadedInterpreter* interpreter) {
  if (std::string problem = interpreter->Import(); !problem.empty()) {
    const bool is_missing = problem.find("No module named") != std::string::npos;
    return No(is_missing ? ReasonCode::kBridgeNoJax : ReasonCode::kBridgeStart, std::move(problem));
  }
  const Result<std::string> answer = interpreter->Call(R"({"request": "start"})");
  if (!answer) return No(ReasonCode::kBridgeStart, answer.error().message);
  const auto tree = ReadJsonTree(*answer, {.max_depth = 2, .max_values = 16});
  const auto text = [&](const char* key) {
    const DocumentValue* value = tree ? tree->Find(key) : nullptr;
    return value == nullptr ? std::string() : value->text;
  };
  if (std::string problem = VersionsProblem(text("python"), text("jax")); !problem.empty()) {
    return No(ReasonCode::kBridgeVersion, std::move(problem));
  }
  interpreter->SetRuntime(fmt::format("Python {}, NumPy {}, JAX {}", text("python"), text("numpy"), text("jax")));
  return {interpreter, Decision::Yes()};
}

// One that this process is. No lock but Python's own: whoever waits for that must hold no other.
OpenedInterpreter OpenHost() {
  static std::atomic<const Interpreter*> known{nullptr};
  if (const Interpreter* interpreter = known.load(); interpreter != nullptr) {
    if (interpreter->IsThere()) return {interpreter, Decision::Yes()};
    return No(ReasonCode::kBridgeStart, "this process was forked from one that had used the bridge");
  }
  Api api;
  if (const std::string missing = Load(RTLD_DEFAULT, api); !missing.empty()) {
    return No(ReasonCode::kBridgeVersion, "this process's Python lacks " + missing);
  }
  const OpenedInterpreter opened = ImportInto(new LoadedInterpreter(api, "host", {}));  // kept as long as the process
  if (opened.interpreter != nullptr) known.store(opened.interpreter);
  return opened;
}

// One that is loaded into this process, once.
struct Embedded {
  std::mutex mutex;
  const Interpreter* interpreter = nullptr;
  std::string program;
  Decision refusal;  // after which no other can be started
};

OpenedInterpreter OpenEmbedded(const std::string& program) {
  static Embedded& embedded = *new Embedded();
  const std::lock_guard<std::mutex> lock(embedded.mutex);
  if (embedded.interpreter != nullptr) {
    if (embedded.program != program) {
      return No(ReasonCode::kBridgeStart, fmt::format("this process runs {} already", embedded.program));
    }
    if (embedded.interpreter->IsThere()) return {embedded.interpreter, Decision::Yes()};
    return No(ReasonCode::kBridgeStart, "this process was forked from one that had started Python");
  }
  if (!embedded.refusal.accepted) return {nullptr, embedded.refusal};
  const auto facts = AskPython(program);
  if (!facts) return No(ReasonCode::kBridgeNoInterpreter, facts.error());
  if (facts->jax.empty()) return No(ReasonCode::kBridgeNoJax, fmt::format("{} has none", program));
  if (facts->is_free_threaded) return No(ReasonCode::kBridgeVersion, "Python without its lock (free-threaded)");
  if (std::string problem = VersionsProblem(facts->python, facts->jax); !problem.empty()) {
    return No(ReasonCode::kBridgeVersion, std::move(problem));
  }
  void* library = nullptr;
  std::string path;
  for (const std::string& candidate : facts->libraries) {
    path = candidate;
    library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_GLOBAL);  // extension modules look their names up in it
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return No(ReasonCode::kBridgeNoInterpreter,
              fmt::format("the library of {} is not there: looked for {}", program, fmt::join(facts->libraries, ", ")));
  }
  Api api;
  if (const std::string missing = Load(library, api); !missing.empty()) {
    return No(ReasonCode::kBridgeVersion, fmt::format("{} lacks {}", path, missing));
  }
  const KeepsHost kept;
  OpenedInterpreter opened;
  if (Start(api, program)) {
    opened = ImportInto(new LoadedInterpreter(api, "embedded", path));  // kept as long as the process
  } else {
    opened = No(ReasonCode::kBridgeStart, fmt::format("{} ended at its start", program));
  }
  embedded.interpreter = opened.interpreter;
  embedded.program = program;
  embedded.refusal = opened.decision;
  return opened;
}

}  // namespace

bool IsHostPython() {
  const auto is_initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  return is_initialized != nullptr && is_initialized() != 0 && !TheParked().is_ready;
}

OpenedInterpreter OpenInterpreter(const std::string& program) {
  return IsHostPython() ? OpenHost() : OpenEmbedded(program);
}

}  // namespace tessera::lanes::bridge
