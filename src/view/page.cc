// The page: a frame with a style and a script, and the data that the script draws.
#include <string>
#include <string_view>

#include "io/json_writer.h"
#include "tessera/view.h"
#include "view/page_text.h"
#include "view/plan_data.h"

namespace tessera {
namespace {

// JSON inside a <script> element: no '<' may begin a tag or a comment there, and a string may hold any.
std::string InsideScript(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

std::string InsideHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

void Replace(std::string& page, std::string_view place, std::string_view text) {
  page.replace(page.find(place), place.size(), text);
}

}  // namespace

Result<std::string> MakeViewHtml(const ViewSubject& subject) {
  if (subject.plans.empty() && subject.receipts.empty())
    return Fail(ErrorCode::kBadArgument, "there is nothing to show");
  if (subject.plans.size() > 2) return Fail(ErrorCode::kBadArgument, "at most two plans are shown side by side");
  JsonWriter data;
  data.BeginObject().Key("title").Text(subject.title).Key("plans").BeginArray();
  for (const ShownPlan& plan : subject.plans) data.Raw(view::PlanData(plan));
  data.EndArray().Key("receipts").BeginArray();
  for (const std::string& receipt : subject.receipts) data.Raw(receipt);
  data.EndArray().EndObject();
  std::string script;
  for (const char* part : {view::kPlanJs, view::kDifferencesJs, view::kMapJs, view::kPanelsJs, view::kMainJs})
    script += part;
  // From the last place to the first: a place is then found before anything that was put in after it.
  std::string page = view::kPageHtml;
  Replace(page, "@SCRIPT@", script);
  Replace(page, "@DATA@", InsideScript(data.Take()));
  Replace(page, "@STYLE@", view::kStyleCss);
  Replace(page, "@TITLE@", InsideHtml(subject.title));
  return page;
}

}  // namespace tessera
