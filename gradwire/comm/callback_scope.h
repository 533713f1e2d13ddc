#pragma once

// Private to gradwire.

namespace gradwire {

// While it lives, the calling thread completes futures for others, which may
// have hung callbacks on them. A callback that waits there for a Future that is
// not done would wait for its own thread. Scopes nest.
class CallbackScope {
 public:
  CallbackScope();
  ~CallbackScope();
  CallbackScope(const CallbackScope&) = delete;

  // Whether the calling thread is in one.
  static bool is_open();
  // Before waiting: throws Error if the calling thread is in one.
  static void check_wait();
};

}  // namespace gradwire
