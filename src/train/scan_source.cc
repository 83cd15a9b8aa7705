#include "train/scan_source.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace tessera::train {
namespace {

// StructureCategories(), by number.
enum Category : int32_t {
  kOther,
  kPreamble,
  kSignature,
  kBody,
  kClassDecl,
  kClassMember,
  kCommentText,
  kTypedef,
  kNamespace
};

struct Values {
  Category category = kOther;
  int32_t depth = 0;
  int32_t sibling = 0;
  NodeType node = NodeType::kBlank;
};

bool IsWordByte(unsigned char byte) { return std::isalnum(byte) != 0 || byte == '_' || byte >= 0x80; }
bool IsOpening(char byte) { return byte == '(' || byte == '[' || byte == '{'; }
bool IsClosing(char byte) { return byte == ')' || byte == ']' || byte == '}'; }

NodeType NodeOf(char byte, bool word_is_number) {
  const auto plain = static_cast<unsigned char>(byte);
  if (std::isspace(plain) != 0) return NodeType::kBlank;
  if (IsWordByte(plain)) return word_is_number ? NodeType::kNumber : NodeType::kWord;
  if (IsOpening(byte)) return NodeType::kOpening;
  return IsClosing(byte) ? NodeType::kClosing : NodeType::kSign;
}

// A block that is open: what it is, and how many statements it has had.
struct Block {
  Category kind = kOther;
  int32_t siblings = 0;
  int32_t indent = 0;  // of Python: that of its lines
};

// The word that is being read, and where it began.
class Words {
 public:
  // Gives the word that ended before this byte, or nothing.
  std::string_view Next(char byte) {
    if (IsWordByte(static_cast<unsigned char>(byte))) {
      if (has_ended_) word_.clear();
      has_ended_ = false;
      word_ += byte;
      return {};
    }
    if (has_ended_) return {};
    has_ended_ = true;
    return word_;
  }
  bool IsNumber() const { return !word_.empty() && std::isdigit(static_cast<unsigned char>(word_.front())) != 0; }

 private:
  std::string word_;
  bool has_ended_ = true;
};

class Scanner {
 public:
  explicit Scanner(Language language) : is_python_(language == Language::kPython) {}

  Values Next(char byte) {
    Values values = is_python_ ? NextPython(byte) : NextC(byte);
    values.depth = std::min(kMaxDepth, static_cast<int32_t>(blocks_.size()) - 1 + brackets_);
    values.sibling = std::min(kMaxDepth, blocks_.back().siblings);
    previous_ = byte;
    return values;
  }

 private:
  enum class State : uint8_t { kCode, kLineComment, kBlockComment, kString, kDirective };

  // Bytes inside of comments, strings and directives; true where this was one.
  bool NextQuoted(char byte, Values& values) {
    switch (state_) {
      case State::kCode:
        return false;
      case State::kLineComment:
        values = {kCommentText, 0, 0, NodeType::kComment};
        if (byte == '\n') EndLine();
        return true;
      case State::kBlockComment:
        values = {kCommentText, 0, 0, NodeType::kComment};
        if (previous_ == '*' && byte == '/') state_ = State::kCode;
        return true;
      case State::kDirective:
        values = {kPreamble, 0, 0, NodeType::kDirective};
        if (byte == '\n' && previous_ != '\\') EndLine();
        return true;
      case State::kString:
        break;
    }
    values = {CategoryNow(), 0, 0, NodeType::kString};
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (byte == '\\') {
      is_escaped_ = true;
    } else if (byte == quote_) {
      // Three quotes in a row are what begins and ends a long text of Python's.
      ++quotes_in_a_row_;
      if (!is_long_text_ || quotes_in_a_row_ == 3) state_ = State::kCode;
      return true;
    } else if (byte == '\n' && !is_long_text_) {
      state_ = State::kCode;  // unended: it was no string
    }
    quotes_in_a_row_ = 0;
    return true;
  }

  void EndLine() {
    state_ = State::kCode;
    if (!is_python_) is_line_blank_ = true;
  }

  void BeginString(char quote) {
    // The third of three quotes: the empty string before it was the beginning of a long text.
    const bool is_third = is_python_ && quote == quote_ && previous_ == quote && was_empty_string_;
    is_long_text_ = is_third;
    quote_ = quote;
    quotes_in_a_row_ = 0;
    is_escaped_ = false;
    state_ = State::kString;
  }

  Category CategoryNow() const {
    const Category kind = blocks_.back().kind;
    if (kind == kBody) return kBody;
    if (statement_ != kOther) return statement_;
    if (has_parenthesis_) return kSignature;
    return kind == kClassDecl ? kClassMember : kOther;
  }

  void EndStatement() {
    statement_ = kOther;
    has_parenthesis_ = false;
    ++blocks_.back().siblings;
  }

  Values NextC(char byte) {
    Values values;
    if (state_ == State::kCode && previous_ == '/' && (byte == '/' || byte == '*'))
      state_ = byte == '/' ? State::kLineComment : State::kBlockComment;
    if (byte == '*' && state_ == State::kBlockComment && previous_ == '/') {
      words_.Next(byte);
      return {kCommentText, 0, 0, NodeType::kComment};
    }
    if (NextQuoted(byte, values)) return values;
    if (byte == '#' && is_line_blank_) {
      state_ = State::kDirective;
      return {kPreamble, 0, 0, NodeType::kDirective};
    }
    if (byte == '\n') {
      is_line_blank_ = true;
    } else if (std::isspace(static_cast<unsigned char>(byte)) == 0) {
      is_line_blank_ = false;
    }
    const std::string_view word = words_.Next(byte);
    if (!word.empty() && statement_ == kOther && !has_parenthesis_) statement_ = KeywordOfC(word);
    const bool is_separator = byte == '\'' && IsWordByte(static_cast<unsigned char>(previous_));  // 1'000
    if ((byte == '"' || byte == '\'') && !is_separator) {
      BeginString(byte);
      return {CategoryNow(), 0, 0, NodeType::kString};
    }
    values.category = CategoryNow();
    values.node = NodeOf(byte, words_.IsNumber());
    if (byte == '(') {
      has_parenthesis_ = true;
      ++brackets_;
    } else if (byte == ')') {
      brackets_ = std::max(0, brackets_ - 1);
    } else if (byte == '{') {
      OpenBlock();
    } else if (byte == '}') {
      if (blocks_.size() > 1) blocks_.pop_back();
      brackets_ = 0;
      EndStatement();
    } else if (byte == ';' && brackets_ == 0) {
      EndStatement();
    }
    return values;
  }

  static Category KeywordOfC(std::string_view word) {
    if (word == "namespace") return kNamespace;
    if (word == "class" || word == "struct" || word == "enum" || word == "union") return kClassDecl;
    return word == "typedef" || word == "using" ? kTypedef : kOther;
  }

  void OpenBlock() {
    Category kind = kOther;
    if (blocks_.back().kind == kBody || has_parenthesis_) {
      kind = kBody;
    } else if (statement_ == kNamespace || statement_ == kClassDecl) {
      kind = statement_;
    }
    blocks_.push_back({kind, 0, 0});
    brackets_ = 0;
    statement_ = kOther;
    has_parenthesis_ = false;
  }

  Values NextPython(char byte) {
    Values values;
    if (NextQuoted(byte, values)) {
      was_empty_string_ = state_ == State::kCode && byte == quote_ && previous_ == quote_ && !is_long_text_;
      if (values.node == NodeType::kComment && byte == '\n') BeginLine();
      return values;
    }
    const std::string_view word = words_.Next(byte);
    if (!word.empty() && is_first_word_) {
      is_first_word_ = false;
      statement_ = KeywordOfPython(word);
    }
    const bool is_blank = std::isspace(static_cast<unsigned char>(byte)) != 0;
    if (is_line_blank_ && byte == ' ') ++indent_;
    if (is_line_blank_ && !is_blank && byte != '#') {
      is_line_blank_ = false;
      BeginStatement();
    }
    if (byte == '#') {
      state_ = State::kLineComment;
      return {kCommentText, 0, 0, NodeType::kComment};
    }
    if (byte == '"' || byte == '\'') {
      BeginString(byte);
      was_empty_string_ = false;
      return {CategoryNow(), 0, 0, NodeType::kString};
    }
    values.category = CategoryNow();
    values.node = NodeOf(byte, words_.IsNumber());
    if (IsOpening(byte)) ++brackets_;
    if (IsClosing(byte)) brackets_ = std::max(0, brackets_ - 1);
    if (byte == ':' && brackets_ == 0 && (statement_ == kSignature || statement_ == kClassDecl))
      opens_ = statement_ == kSignature || blocks_.back().kind == kBody ? kBody : kClassDecl;
    if (byte == '\n') BeginLine();
    return values;
  }

  static Category KeywordOfPython(std::string_view word) {
    if (word == "import" || word == "from") return kPreamble;
    if (word == "def" || word == "async") return kSignature;
    return word == "class" ? kClassDecl : kOther;
  }

  void BeginLine() {
    if (brackets_ > 0) return;
    is_line_blank_ = true;
    indent_ = 0;
  }

  // The first byte of a line that is no blank, outside of brackets: blocks that are indented more have ended.
  void BeginStatement() {
    if (opens_ != kOther) {
      if (indent_ > blocks_.back().indent) blocks_.push_back({opens_, 0, indent_});
      opens_ = kOther;
    }
    while (blocks_.size() > 1 && indent_ < blocks_.back().indent) blocks_.pop_back();
    EndStatement();
    is_first_word_ = true;
  }

  bool is_python_;
  State state_ = State::kCode;
  char previous_ = '\n';
  char quote_ = 0;
  int quotes_in_a_row_ = 0;
  bool is_escaped_ = false;
  bool is_long_text_ = false;
  bool was_empty_string_ = false;
  bool is_line_blank_ = true;
  bool is_first_word_ = true;
  bool has_parenthesis_ = false;
  int32_t indent_ = 0;
  int32_t brackets_ = 0;
  Category statement_ = kOther;
  Category opens_ = kOther;
  Words words_;
  std::vector<Block> blocks_ = {Block{}};
};

}  // namespace

Language LanguageOf(std::string_view path) {
  for (const std::string_view ending : {".c", ".h", ".cc", ".cu", ".cuh", ".cpp", ".hpp", ".def"})
    if (path.ends_with(ending)) return Language::kC;
  return path.ends_with(".py") ? Language::kPython : Language::kOther;
}

Document ScanSource(std::string_view text, Language language) {
  Document document;
  document.tokens.reserve(text.size());
  for (const char byte : text) document.tokens.push_back(static_cast<unsigned char>(byte));
  if (language == Language::kOther) return document;
  const auto column = [&](TokenColumn which) -> std::vector<int32_t>& {
    std::vector<int32_t>& values = document.columns[static_cast<size_t>(which)];
    values.reserve(text.size());
    return values;
  };
  std::vector<int32_t>& categories = column(TokenColumn::kStructureIds);
  std::vector<int32_t>& depths = column(TokenColumn::kAstDepth);
  std::vector<int32_t>& siblings = column(TokenColumn::kSiblingIndex);
  std::vector<int32_t>& nodes = column(TokenColumn::kAstNodeType);
  Scanner scanner(language);
  for (const char byte : text) {
    const Values values = scanner.Next(byte);
    categories.push_back(values.category);
    depths.push_back(values.depth);
    siblings.push_back(values.sibling);
    nodes.push_back(static_cast<int32_t>(values.node));
  }
  return document;
}

}  // namespace tessera::train
