// The files of src/view/page, which the build turns into text.
#pragma once

namespace tessera::view {

extern const char* const kPageHtml;
extern const char* const kStyleCss;
extern const char* const kPlanJs;
extern const char* const kDifferencesJs;
extern const char* const kMapJs;
extern const char* const kPanelsJs;
extern const char* const kMainJs;

}  // namespace tessera::view
