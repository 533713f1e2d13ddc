#include "gradwire/comm/callback_scope.h"

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

thread_local int scopes_of_thread = 0;

}  // namespace

CallbackScope::CallbackScope() {
  ++scopes_of_thread;
}

CallbackScope::~CallbackScope() {
  --scopes_of_thread;
}

bool CallbackScope::is_open() {
  return scopes_of_thread > 0;
}

void CallbackScope::check_wait() {
  if (is_open()) {
    fail(
        "comm",
        "a callback waits for a Future that is not done, on a thread which "
        "others need to be done: expected then() in place of wait()");
  }
}

}  // namespace gradwire
