// Runs stages by name: times, disables, verifies and dumps each, and keeps a report. A stage that runs for several
// tile sizes or directions adds to one report. What a stage gives is put into words by Describe and Dump of its own
// namespace.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tessera/stages.h"

namespace tessera::plan {

// That every stage that is to be disabled is there and can be.
Status CheckOptions(const PlanOptions& options);

template <class T>
struct UnwrapResult {
  using Type = T;
};
template <class T>
struct UnwrapResult<Result<T>> {
  using Type = T;
};

class Runner {
 public:
  explicit Runner(const PlanOptions& options) : options_(options) {}

  bool IsDisabled(std::string_view stage) {
    for (const std::string& name : options_.disable) {
      if (name == stage) {
        Report(stage).disabled = true;
        return true;
      }
    }
    return false;
  }

  // Runs `work`, which returns a plain value or a Result. Off the clock, the value is described, checked by `verify`
  // and dumped, the last two only when the options ask for it.
  template <class Work, class Verify>
  auto Run(std::string_view stage, const Work& work, const Verify& verify)
      -> Result<typename UnwrapResult<decltype(work())>::Type> {
    using Outcome = decltype(work());
    const Clock clock;
    Outcome outcome = work();
    const int64_t ns = clock.Ns();
    StageReport& report = Report(stage);
    report.ns += ns;
    if constexpr (std::is_same_v<Outcome, typename UnwrapResult<Outcome>::Type>) {
      return Finish(report, std::move(outcome), verify);
    } else {
      if (!outcome) return tl::unexpected(std::move(outcome.error()));
      return Finish(report, std::move(*outcome), verify);
    }
  }

  std::vector<StageReport> TakeReports() { return std::move(reports_); }

 private:
  template <class T, class Verify>
  Result<T> Finish(StageReport& report, T value, const Verify& verify) {
    if (!report.summary.empty()) report.summary += "; ";
    report.summary += Describe(value);
    if (options_.verify_stages) {
      if (Status ok = verify(value); !ok) return tl::unexpected(std::move(ok.error()));
    }
    if (options_.dump_stages) report.dump += Dump(value);
    return value;
  }

  StageReport& Report(std::string_view stage) {
    for (StageReport& report : reports_) {
      if (report.name == stage) return report;
    }
    reports_.emplace_back();
    reports_.back().name = stage;
    return reports_.back();
  }

  const PlanOptions& options_;
  std::vector<StageReport> reports_;
};

}  // namespace tessera::plan
