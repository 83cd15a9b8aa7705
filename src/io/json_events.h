// JSON as a stream of events, for files that may be large or hostile: no tree is built, nesting is limited, a key
// that appears twice in one object is an error, and numbers must be integers.
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
  // A value of a kind no format here has: "null", "a boolean", "a fraction", "a number above int64".
  virtual bool OnOther(std::string_view what) = 0;
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
