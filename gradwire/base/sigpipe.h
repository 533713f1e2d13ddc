#pragma once

#include <signal.h>

namespace gradwire {

// While it lives the calling thread, and for good every thread that is started
// meanwhile, gets no SIGPIPE. Gloo and the store write to sockets without
// asking for errors instead: the end of one rank would be the end of all that
// talk to it, without a word. The process as a whole keeps what it has.
class SigpipeBlocked {
 public:
  SigpipeBlocked();
  ~SigpipeBlocked();
  SigpipeBlocked(const SigpipeBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace gradwire
