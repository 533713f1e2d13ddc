#pragma once

#include <signal.h>

namespace gradwire {

// Blocks SIGPIPE in the calling thread while it lives, and for good in every
// thread that is started meanwhile. Gloo and the store write to sockets without
// asking for errors instead, so the end of one rank would silently end all
// ranks that talk to it. The rest of the process is left as it is.
class SigpipeBlocked {
 public:
  SigpipeBlocked();
  ~SigpipeBlocked();
  SigpipeBlocked(const SigpipeBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace gradwire
