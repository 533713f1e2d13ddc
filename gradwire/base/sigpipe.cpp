#include "gradwire/base/sigpipe.h"

#include <ctime>

namespace gradwire {
namespace {

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

SigpipeBlocked::SigpipeBlocked() {
  const sigset_t set = only_sigpipe();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

SigpipeBlocked::~SigpipeBlocked() {
  // One that has come meanwhile was for a write whose error was seen.
  if (sigismember(&before_, SIGPIPE) == 0) {
    const sigset_t set = only_sigpipe();
    const timespec at_once{};
    sigtimedwait(&set, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace gradwire
