#include "gradwire/comm/profile.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>
#include <utility>

#include "gradwire/base/text.h"

namespace gradwire {
namespace {

constexpr const char* kProfilePrefix = "gradwire::";

// Of the ProfileScope that the thread is in.
thread_local const std::string* current_title = nullptr;

bool is_thread_watched() {
  return at::hasCallbacks() && at::isRecordFunctionEnabled();
}

void start_range(at::RecordFunction& range, const std::string& name) {
  if (range.isActive()) {
    range.before(std::string_view(name));
  }
}

}  // namespace

struct Profiled {
  std::string title;
  at::RecordFunctionTLS callbacks;
  std::shared_ptr<c10::ThreadLocalDebugInfo> info;
};

namespace {

// While it lives, the calling thread is watched by whoever watches the work.
class WatchedAs {
 public:
  explicit WatchedAs(const Profiled& work)
      : callbacks_(at::get_record_function_tls_()),
        info_(c10::ThreadLocalDebugInfo::current()) {
    set(work.callbacks, work.info);
  }
  ~WatchedAs() {
    set(callbacks_, info_);
  }
  WatchedAs(const WatchedAs&) = delete;

 private:
  static void set(
      const at::RecordFunctionTLS& callbacks,
      const std::shared_ptr<c10::ThreadLocalDebugInfo>& info) {
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(info);
    at::set_record_function_tls_(callbacks);
  }

  at::RecordFunctionTLS callbacks_;
  std::shared_ptr<c10::ThreadLocalDebugInfo> info_;
};

}  // namespace

bool ProfileScope::is_watched() {
  return is_thread_watched();
}

ProfiledPtr profiled_here(const std::string& fallback) {
  if (!is_thread_watched()) {
    return nullptr;
  }
  return std::make_shared<const Profiled>(Profiled{
      current_title != nullptr ? *current_title : kProfilePrefix + fallback,
      at::get_record_function_tls_(),
      c10::ThreadLocalDebugInfo::current()});
}

struct ProfileScope::Range {
  explicit Range(std::string name)
      : title(std::move(name)),
        before(std::exchange(current_title, &title)),
        recorded(at::RecordScope::USER_SCOPE) {
    start_range(recorded, title);
  }
  ~Range() {
    current_title = before;
  }
  Range(const Range&) = delete;

  std::string title;
  const std::string* before;
  at::RecordFunction recorded;
};

void ProfileScope::begin(std::string title) {
  range_ = std::make_shared<Range>(kProfilePrefix + std::move(title));
}

ProfileScope::~ProfileScope() = default;

// Only its two ends are watched: what the work calls meanwhile, collectives
// included, may end after the work is done.
struct ProfileRange::Range {
  Range(ProfiledPtr watched, const std::string& part)
      : work(std::move(watched)) {
    const WatchedAs here(*work);
    recorded.emplace(at::RecordScope::USER_SCOPE);
    start_range(*recorded, concat(work->title, " ", part));
  }
  ~Range() {
    const WatchedAs here(*work);
    recorded.reset();
  }
  Range(const Range&) = delete;

  ProfiledPtr work;
  std::optional<at::RecordFunction> recorded;
};

ProfileRange::ProfileRange(ProfiledPtr work, const std::string& part)
    : range_(work ? std::make_unique<Range>(std::move(work), part) : nullptr) {}

ProfileRange::~ProfileRange() = default;

}  // namespace gradwire
