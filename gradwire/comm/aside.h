#pragma once

// Private to comm.

#include <system_error>
#include <thread>

namespace gradwire {

// Runs it on a thread of its own; on this one, which then waits for it, when
// none can be started.
template <class Work>
void run_aside(Work work) {
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {
    work();
  }
}

}  // namespace gradwire
