// The one reader of JSON: a stream of events, for files that may be large or hostile. No tree is built, nesting is
// limited, and a key that appears twice in one object is an error. io/document.h has a tree made of these events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

// What a file format does with each event. A handler refuses an event by returning Refuse(reason).
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual bool OnInteger(int64_t value) = 0;
  virtual bool OnText(std::string_view value) = 0;
  // A value of a kind that the format has no use for: "null", "a boolean", "a fraction", "a number above int64".
  virtual bool OnOther(std::string_view what) = 0;
  // For formats that do have a use for it.
  virtual bool OnBool(bool) { return OnOther("a boolean"); }
  // A fraction, or an integer that int64 cannot hold; `source` is how it was written.
  virtual bool OnReal(double, std::string_view source) {
    const bool is_whole = source.find_first_not_of("0123456789") == std::string_view::npos;
    return OnOther(is_whole ? "a number above int64" : "a fraction");
  }
  virtual bool OnKey(std::string_view key) = 0;
  virtual bool OnObjectBegin() = 0;
  virtual bool OnObjectEnd() = 0;
  virtual bool OnArrayBegin() = 0;
  virtual bool OnArrayEnd() = 0;

  bool Refuse(std::string reason) {
    refusal_ = std::move(reason);
    return false;
  }
  const std::string& refusal() const { return refusal_; }

 private:
  std::string refusal_;
};

// Walks the text. Returns nothing when all of it was good, else what is wrong with it: the handler's refusal, or the
// syntax error with its line and column.
std::string WalkJson(std::string_view text, int max_depth, JsonHandler& handler);

}  // namespace tessera
