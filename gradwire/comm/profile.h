#pragma once

// Private to gradwire: ranges in Torch's profiler.

#include <memory>
#include <string>

namespace gradwire {

// Who watches a piece of work, and what it is called there. Torch's profiler
// watches the thread that started it and those of autograd; work that goes on
// in another thread is seen only if it takes this along.
struct Profiled;
using ProfiledPtr = std::shared_ptr<const Profiled>;

// Null when no profiler watches the calling thread, which costs two looks at
// thread-local variables. Otherwise called as the ProfileScope that this thread
// is in, or `fallback` outside of any.
ProfiledPtr profiled_here(const std::string& fallback);

// A range, and the name of what the calling thread hands to others meanwhile.
// `title()` is called only if a profiler watches.
class ProfileScope {
 public:
  template <class Title>
  explicit ProfileScope(const Title& title) {
    if (is_watched()) {
      begin(title());
    }
  }
  ~ProfileScope();
  ProfileScope(const ProfileScope&) = delete;

 private:
  struct Range;

  static bool is_watched();
  void begin(std::string title);

  // Shared with nobody: this pointer knows how to delete what is not known
  // here.
  std::shared_ptr<Range> range_;
};

// A range of another thread: one part of work that was taken along. It must end
// before the work is known to be done, as the profiler may be stopped then.
class ProfileRange {
 public:
  // Of no work: nothing is recorded.
  ProfileRange(ProfiledPtr work, const std::string& part);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;

 private:
  struct Range;

  std::unique_ptr<Range> range_;
};

}  // namespace gradwire
