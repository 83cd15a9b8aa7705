// See raw_document.h. A document is an object; what the handler has no name for passes by.
#include "rows/raw_document.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/spelling.h"

namespace tessera::rows {
namespace {

// What the packer makes: given here, it would be made again and what was given lost.
constexpr std::string_view kMade[] = {"target_ids", "loss_mask", "doc_ids", "num_docs", "pack_id"};
// Every spelling of the two ends of an edge.
constexpr std::string_view kFrom[] = {"from", "src", "source"};
constexpr std::string_view kTo[] = {"to", "dst", "target"};

template <size_t kCount>
bool IsOneOf(std::string_view word, const std::string_view (&words)[kCount]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

void Reset(RawList& list) {
  list.is_given = false;
  list.values.clear();
}
void Reset(RawEdges& edges) {
  edges.is_given = false;
  edges.edges.clear();
}

}  // namespace

void RawDocument::Clear() {
  Reset(tokens);
  text.reset();
  Reset(spans);
  for (RawList& list : columns) Reset(list);
  for (RawList& list : characters) Reset(list);
  for (RawList* list : {&chunk_starts, &chunk_ends, &chunk_kinds, &chunk_dep_levels, &platform_ids}) Reset(*list);
  has_chunks = false;
  chunks.clear();
  Reset(call_edges);
  Reset(type_edges);
  valid_tokens.reset();
  text_ids.clear();
}

void DocumentHandler::Begin() {
  raw_.Clear();
  field_ = {};
  seen_.clear();
  list_ = nullptr;
  depth_ = 0;
  is_member_ignored_ = false;
  code_ = ErrorCode::kDocumentSyntax;
}

DocumentHandler::Field DocumentHandler::FieldOf(std::string_view key) {
  if (key == "tokens" || key == "input_ids") return {Kind::kList, &raw_.tokens};
  if (key == "text") return {Kind::kText};
  if (key == "token_spans") return {Kind::kSpans, &raw_.spans};
  if (key == "token_chunk_starts") return {Kind::kList, &raw_.chunk_starts};
  if (key == "token_chunk_ends") return {Kind::kList, &raw_.chunk_ends};
  if (key == "token_chunk_kinds") return {Kind::kKinds, &raw_.chunk_kinds};
  if (key == "token_chunk_dep_levels") return {Kind::kList, &raw_.chunk_dep_levels};
  if (key == "chunk_boundaries") return {Kind::kChunks};
  if (key == "token_call_edges" || key == "call_edges") return {Kind::kEdges, nullptr, &raw_.call_edges};
  if (key == "token_type_edges" || key == "type_edges") return {Kind::kEdges, nullptr, &raw_.type_edges};
  if (key == "platform_ids") return {Kind::kList, &raw_.platform_ids};
  if (key == "valid_token_count" || key == "actual_token_count") return {Kind::kCount};
  if (IsOneOf(key, kMade)) return {Kind::kMade};
  for (size_t i = 0; i < kNumTokenColumns; ++i) {
    if (key == TokenColumns()[i].name) return {Kind::kList, &raw_.columns[i]};
    if (key == TokenColumns()[i].characters) return {Kind::kList, &raw_.characters[i]};
  }
  return {};
}

DocumentHandler::Meaning DocumentHandler::MeaningOf(std::string_view key) {
  RawDocument none;
  const Kind kind = DocumentHandler(none).FieldOf(key).kind;
  if (kind == Kind::kIgnored) return Meaning::kNone;
  return kind == Kind::kMade ? Meaning::kMade : Meaning::kDocument;
}

bool DocumentHandler::Unfit(std::string_view what) {
  code_ = ErrorCode::kDocumentColumn;
  return Refuse(fmt::format("column {} must not hold {}", name_, what));
}

bool DocumentHandler::OutOfRange(int64_t value) {
  code_ = ErrorCode::kDocumentValue;
  return Refuse(fmt::format("column {} holds {}, which 32 bits cannot", name_, value));
}

bool DocumentHandler::OnKey(std::string_view key) {
  if (depth_ == 1) {
    name_ = Shorten(key, 80);
    field_ = FieldOf(key);
    is_member_ignored_ = false;
    if (field_.kind == Kind::kIgnored) return true;
    code_ = ErrorCode::kDocumentColumn;
    if (field_.kind == Kind::kMade) return Refuse(fmt::format("column {} is made by the packer", name_));
    const bool is_twice = std::find(seen_.begin(), seen_.end(), name_) != seen_.end() ||
                          (field_.list != nullptr && field_.list->is_given) ||
                          (field_.edges != nullptr && field_.edges->is_given) ||
                          (field_.kind == Kind::kCount && raw_.valid_tokens);
    if (is_twice) return Refuse(fmt::format("column {} is there twice, or under two names", name_));
    seen_.push_back(name_);
    return true;
  }
  if (depth_ != 3 || field_.kind == Kind::kIgnored) return true;
  member_ = std::string(key);
  is_member_ignored_ = false;
  if (field_.kind == Kind::kEdges) {
    is_member_ignored_ = !IsOneOf(key, kFrom) && !IsOneOf(key, kTo);
  } else if (field_.kind == Kind::kChunks) {
    is_member_ignored_ = key != "start" && key != "end" && key != "kind" && key != "dep_level" && key != "id";
  }
  return true;
}

bool DocumentHandler::OnSingle(int64_t value) {
  if (depth_ == 0) return Refuse("a document is a JSON object");
  if (IsIgnored()) return true;
  if (depth_ == 1 && field_.kind == Kind::kCount) {
    raw_.valid_tokens = value;
    return true;
  }
  if (depth_ == 3 && (field_.kind == Kind::kEdges || field_.kind == Kind::kChunks)) return SetMember(value);
  return Unfit("a number there");
}

bool DocumentHandler::SetMember(int64_t value) {
  std::optional<int64_t>* member = nullptr;
  if (field_.kind == Kind::kEdges) {
    RawEdge& edge = field_.edges->edges.back();
    if (is_object_) {
      member = IsOneOf(member_, kFrom) ? &edge.from : &edge.to;
    } else if (++pair_ <= 2) {
      member = pair_ == 1 ? &edge.from : &edge.to;
    } else {
      return Unfit("an edge of more than two ends");
    }
  } else {
    RawChunk& chunk = raw_.chunks.back();
    member = member_ == "start"       ? &chunk.start
             : member_ == "end"       ? &chunk.end
             : member_ == "kind"      ? &chunk.kind
             : member_ == "dep_level" ? &chunk.dep_level
                                      : &chunk.id;
  }
  if (member->has_value()) return Unfit(fmt::format("{} twice in one entry", member_));
  *member = value;
  return true;
}

std::optional<int64_t> DocumentHandler::KindOf(std::string_view name) {
  const auto categories = StructureCategories();
  const auto found = std::find(categories.begin(), categories.end(), name);
  if (found == categories.end()) {
    code_ = ErrorCode::kDocumentValue;
    const std::vector<std::string_view> known(categories.begin(), categories.end());
    Refuse(fmt::format("column {}: there is no kind {}{}", name_, Excerpt(name), DidYouMean(name, known)));
    return std::nullopt;
  }
  return found - categories.begin();
}

int64_t DocumentHandler::IdOf(std::string_view text) {
  const auto next = kFirstTextId + static_cast<int64_t>(raw_.text_ids.size());
  return raw_.text_ids.emplace(std::string(text), next).first->second;
}

bool DocumentHandler::OnText(std::string_view value) {
  if (depth_ == 0) return Refuse("a document is a JSON object");
  if (IsIgnored()) return true;
  if (depth_ == 1 && field_.kind == Kind::kText) {
    raw_.text = std::string(value);
    return true;
  }
  if (depth_ == 2 && field_.kind == Kind::kKinds) {
    const std::optional<int64_t> kind = KindOf(value);
    if (kind) field_.list->values.push_back(static_cast<int32_t>(*kind));
    return kind.has_value();
  }
  if (depth_ == 3 && field_.kind == Kind::kEdges) return SetMember(IdOf(value));
  if (depth_ == 3 && field_.kind == Kind::kChunks) {
    if (member_ == "kind") {
      const std::optional<int64_t> kind = KindOf(value);
      return kind && SetMember(*kind);
    }
    if (member_ == "id") return SetMember(IdOf(value));
  }
  return Unfit("a text there");
}

bool DocumentHandler::OnOther(std::string_view what) {
  if (depth_ == 0) return Refuse("a document is a JSON object");
  // null says that there is nothing to say.
  const bool is_null = what == "null" && (depth_ == 1 || (depth_ == 3 && field_.kind == Kind::kChunks));
  return IsIgnored() || is_null ? true : Unfit(what);
}

bool DocumentHandler::OnObjectBegin() {
  ++depth_;
  if (depth_ == 1 || IsIgnored()) return true;
  if (depth_ == 3 && field_.kind == Kind::kEdges) {
    field_.edges->edges.emplace_back();
    is_object_ = true;
    return true;
  }
  if (depth_ == 3 && field_.kind == Kind::kChunks) {
    raw_.chunks.emplace_back();
    return true;
  }
  return Unfit("an object there");
}

bool DocumentHandler::OnObjectEnd() {
  --depth_;
  if (depth_ == 2) is_member_ignored_ = false;
  if (depth_ == 0) field_ = {};
  return true;
}

bool DocumentHandler::OnArrayBegin() {
  if (depth_ == 0) return Refuse("a document is a JSON object");
  ++depth_;
  if (IsIgnored()) return true;
  if (depth_ == 2) {
    switch (field_.kind) {
      case Kind::kList:
      case Kind::kKinds:
      case Kind::kSpans:
        field_.list->is_given = true;
        list_ = field_.list;
        list_depth_ = field_.kind == Kind::kSpans ? 3 : 2;
        return true;
      case Kind::kEdges:
        field_.edges->is_given = true;
        field_.edges->name = name_;
        return true;
      case Kind::kChunks:
        raw_.has_chunks = true;
        return true;
      default:
        break;
    }
  }
  if (depth_ == 3 && field_.kind == Kind::kSpans) return true;
  if (depth_ == 3 && field_.kind == Kind::kEdges) {
    field_.edges->edges.emplace_back();
    is_object_ = false;
    member_ = "an end";
    pair_ = 0;
    return true;
  }
  return Unfit("a list there");
}

bool DocumentHandler::OnArrayEnd() {
  --depth_;
  if (depth_ == 1) list_ = nullptr;
  if (depth_ == 2 && field_.kind == Kind::kSpans && list_->values.size() % 2 != 0) return Unfit("a span of one number");
  return true;
}

}  // namespace tessera::rows
