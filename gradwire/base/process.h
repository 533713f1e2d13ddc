#pragma once

#include <unistd.h>

namespace gradwire {

// The process an object was made in. fork() copies memory but no threads: the
// child's copy of an object that works with threads can neither work nor wait
// for its threads to end. Such an object asks here first, and leaks its copy.
class HomeProcess {
 public:
  bool is_here() const {
    return getpid() == id_;
  }

 private:
  pid_t id_ = getpid();
};

}  // namespace gradwire
